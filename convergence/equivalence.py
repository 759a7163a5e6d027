"""Equivalence of pairs: the interval, the two one-sided tests, and what they can find.

Arithmetic on numbers, with Student's t and chi-squared from SciPy. What the numbers are
of, and which margin holds, is not known here.

Schuirmann (1987), "A comparison of the two one-sided tests procedure and the power
approach for assessing the equivalence of average bioavailability": n differences d with
mean m and standard deviation s are found *equal within a margin* M if both one-sided
t-tests at 5 % refuse |mean of d| >= M. That is, if the 90 % interval m ± t(95 %, n-1)
s/√n lies within ±M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize, special, stats

LEVEL = 0.05  # of each one-sided test: equal is said wrongly at most so often
SURE = 0.98  # the power asked of a calibration: a sound setting has several clauses
POWER = 0.90  # that of the smallest worsening that is said to be found
ASSURANCE = 0.80  # that the noise of pairs is no larger than what a calibration says

EQUAL, DIFFERENT, UNDECIDED = "equal", "different", "undecided"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 90 % interval of the mean of paired differences; infinite for under two."""
    count = len(differences)
    if count < 2:
        return -math.inf, math.inf
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    half = float(stats.t.ppf(1 - LEVEL, count - 1)) * error
    return mean - half, mean + half


def outcome(low: float, high: float, margin: float) -> str:
    """What an interval says: equal, different, or undecided.

    1. `EQUAL`: it lies within ±margin. To say so needs evidence.
    2. `DIFFERENT`: it does not hold 0, and its middle is beyond the margin. To say so
       needs evidence too.
    3. `UNDECIDED`: anything else. More pairs would tell.
    """
    if -margin <= low <= high <= margin:
        return EQUAL
    apart = low > 0 or high < 0
    return DIFFERENT if apart and abs(low + high) / 2 > margin else UNDECIDED


def power(margin: float, deviation: float, count: int, *, worse: float = 0.0) -> float:
    """The probability that `count` pairs are found equal.

    Args:
      margin: within which they are to be.
      deviation: standard deviation of a pair's difference.
      count: of pairs, at least 2.
      worse: the true mean of the difference.
    """
    return _power(margin, deviation / math.sqrt(count), count - 1, worse)


def _power(margin: float, error: float, freedom: int, worse: float) -> float:
    """As `power`, of a mean with this standard error and degrees of freedom.

    The mean m is normal, and independent of the error's estimate e, of which freedom
    (e/error)² is chi-squared. They are found equal if |m| < r, r = margin - t e. So::

        P = E over e of  Φ((r - worse)/error) - Φ((-r - worse)/error)

    taken over the e under margin/t, where r is positive (Owen 1965, "A special case of
    a bivariate non-central t-distribution"; Phillips 1990, "Power of the two one-sided
    tests procedure in bioequivalence"). The mean over e is a sum at Gauss's points.
    """
    if error == 0:
        return float(abs(worse) < margin)

    def inside(reach: np.ndarray, worse: float) -> np.ndarray:
        room = np.maximum(margin / error - reach, 0.0)
        found: np.ndarray = special.ndtr(room - worse) - special.ndtr(-room - worse)
        return found

    return _mean(inside, worse / error, freedom)


def _mean(
    chance: Callable[[np.ndarray, float], np.ndarray], worse: float, freedom: int
) -> float:
    """The mean of a probability over the estimated standard error, in units of error.

    The estimate times the root of the degrees of freedom has the chi distribution.

    Args:
      chance: of the reach of an interval, t times the estimate, and of `worse`.
      worse: the true mean of the difference.
      freedom: degrees of freedom.
    """
    critical = float(stats.t.ppf(1 - LEVEL, freedom)) / math.sqrt(freedom)
    low, high = stats.chi.ppf([1e-10, 1 - 1e-10], freedom)
    points, weights = _GAUSS
    estimates = low + (high - low) * (points + 1) / 2
    density = weights * stats.chi.pdf(estimates, freedom) * (high - low) / 2
    return float(np.sum(density * chance(critical * estimates, worse)))


_GAUSS = np.polynomial.legendre.leggauss(96)


def needed_margin(deviation: float, count: int) -> float:
    """The margin within which equal settings are found equal with the power `SURE`.

    Args:
      deviation: standard deviation of a pair's difference.
      count: of pairs, at least 2.
    """

    def lacking(margin: float) -> float:
        return power(margin, 1.0, count) - SURE

    # With two pairs t is 6.3, and 1000 deviations are enough; margins scale with noise.
    return deviation * float(optimize.brentq(lacking, 1e-6, 1e3, xtol=1e-9))


def needed_count(margin: float, deviation: float, most: int) -> int | None:
    """The least number of pairs that finds equal settings equal with `SURE`.

    None if `most` pairs do not; at least 3 are taken.
    """
    for count in range(3, most + 1):
        if power(margin, deviation, count) >= SURE:
            return count
    return None


def power_different(
    margin: float, deviation: float, count: int, *, worse: float
) -> float:
    """The probability that `count` pairs are found different.

    That is, by `outcome`, if |m| > t e and |m| > margin; the mean over the estimate e
    as in `power`. Arguments as there.
    """
    error = deviation / math.sqrt(count)
    if error == 0:
        return float(abs(worse) > margin)

    def beyond(reach: np.ndarray, worse: float) -> np.ndarray:
        least = np.maximum(margin / error, reach)
        found: np.ndarray = special.ndtr(worse - least) + special.ndtr(-worse - least)
        return found

    return _mean(beyond, worse / error, count - 1)


def smallest_found(margin: float, deviation: float, count: int) -> float | None:
    """The smallest worsening that is found to be different with `POWER`.

    It is the margin where there is no noise, and more where there is. (To be called
    equal a worsening of the margin has a probability of at most 5 % already; what is
    merely not called equal may be undecided.) None for fewer than two pairs.
    """
    if count < 2:
        return None
    if deviation == 0:
        return margin

    def lacking(worse: float) -> float:
        return power_different(margin, deviation, count, worse=worse) - POWER

    most = margin + 20 * deviation  # with two pairs t is 6.3
    return float(optimize.brentq(lacking, 0.0, most, xtol=1e-6 * margin))


def upper_deviation(differences: Sequence[float]) -> float:
    """A standard deviation that the true one exceeds with probability 1 - `ASSURANCE`.

    (n-1) s²/σ² is chi-squared with n-1 degrees of freedom. Infinite for under two.
    """
    count = len(differences)
    if count < 2:
        return math.inf
    least = float(stats.chi2.ppf(1 - ASSURANCE, count - 1))
    return float(np.std(differences, ddof=1)) * math.sqrt((count - 1) / least)
