"""How the times of a race's calls depend on the amount of work that the calls had.

Batches differ in size (sequences in buckets, the last batch of an epoch), so that two
calls of one round may have different work. Used by `race_log`, which takes the effect
out of the ratios of times. Nothing is timed here, and nothing is known of entrants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# One timed call: the logarithms of its work and of its seconds.
Point = tuple[float, float]
# From the logarithms of works to those of times, up to a constant.
Effect = Callable[[np.ndarray], np.ndarray]
# With fewer rounds than this a slope is assumed, of a time half of which is fixed: a
# fit would take what entrants differ by for an effect of the work. With fewer than that
# a straight line is fitted: a curve would fit the noise.
FITTED, SLOPE, CURVED = 4, 0.5, 8
# How often residuals are weighed, and from how many times their median on a call counts
# less: for normal noise, whose median is 0.67 standard deviations, from Huber's 1.35.
_PASSES, _FAR = 4, 2.0


def fitted(rounds: Sequence[Sequence[Point]]) -> Effect:
    """The logarithm of a time, up to a constant, by the logarithm of the work.

    A parabola through all calls, whoever was called, with a constant of its own for
    each round, so that only differences within rounds count. In it are a fixed cost, a
    linear one and a quadratic one (attention) to within a few per cent over a factor of
    five; what it misses is noise that falls on all entrants alike.

    That entrants are not told apart is what keeps a rank test of the residuals exact
    (Rosenbaum 2002, "Covariance adjustment in randomized experiments"): if two are
    equally fast, the fit is the same whichever of them had which call of a round.

    Args:
      rounds: the timed calls of each.
    """
    several = [each for each in rounds if len({work for work, _ in each}) > 1]
    if not several:
        return np.zeros_like
    if len(several) < FITTED:
        return lambda work: SLOPE * work
    place = np.repeat(np.arange(len(several)), [len(each) for each in several])
    works, times = np.array([point for each in several for point in each]).T
    middle, spread = works.mean(), works.std()
    powers = (1, 2) if len(several) >= CURVED else (1,)

    def terms(work: np.ndarray) -> np.ndarray:
        scaled = (work - middle) / spread
        return np.stack([scaled**power for power in powers], axis=-1)

    slopes = _robust(_within(terms(works), place), _within(times[:, None], place)[:, 0])
    return lambda work: np.asarray(terms(work) @ slopes)


def _within(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Values less the mean of their round."""
    count = np.bincount(place)[:, None]
    sums = np.stack([np.bincount(place, column) for column in values.T], axis=-1)
    return np.asarray(values - (sums / count)[place])


def _robust(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Huber's fit: least squares in which calls that are far off count less."""
    weights = np.ones(len(values))
    for _ in range(_PASSES):
        roots = np.sqrt(weights)
        slopes: np.ndarray = np.linalg.lstsq(
            terms * roots[:, None], values * roots, rcond=None
        )[0]
        off = np.abs(values - terms @ slopes)
        weights = np.minimum(1.0, _FAR * np.median(off) / np.maximum(off, 1e-12))
    return slopes
