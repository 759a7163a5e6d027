"""Intervals, power and margins: against SciPy, published values, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from convergence import equivalence


def test_the_interval_is_that_of_the_paired_t_test() -> None:
    one, other = [0.9, 0.92, 0.94, 0.91], [0.93, 0.94, 0.97, 0.92]
    expected = stats.ttest_rel(other, one).confidence_interval(0.9)
    found = equivalence.interval(np.subtract(other, one))
    assert found == pytest.approx((expected.low, expected.high))
    assert equivalence.interval([0.0]) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.9, 0.9, "equal"),
        (0.1, 0.9, "equal"),  # not 0, and too small to matter
        (-0.5, 1.5, "undecided"),  # too noisy
        (0.2, 1.5, "undecided"),  # not 0, but perhaps within the margin
        (0.9, 2.0, "different"),
        (-3.0, -0.1, "different"),  # better is not equal either
    ],
)
def test_an_interval_says_equal_different_or_nothing(
    low: float, high: float, outcome: str
) -> None:
    assert equivalence.outcome(low, high, 1.0) == outcome


def test_power_is_that_of_published_tables() -> None:
    """Two-period crossover, 20 % margins as a ratio of 1.25, 40 subjects, CV 30 %.

    The standard example of bioequivalence: true ratio 0.95, power 0.815845 (exact, by
    Owen's Q; R package PowerTOST, `sampleN.TOST(CV = 0.3)`).
    """
    deviation = math.sqrt(math.log(1 + 0.3**2))
    error = deviation * math.sqrt(2 / 40)
    found = equivalence._power(math.log(1.25), error, 38, math.log(0.95))
    assert found == pytest.approx(0.815845, abs=2e-6)


def test_a_margin_scales_with_noise_and_gives_its_power() -> None:
    for count in (2, 3, 5, 12):
        margin = equivalence.needed_margin(0.3, count)
        assert equivalence.power(margin, 0.3, count) == pytest.approx(equivalence.SURE)
        assert equivalence.needed_margin(0.6, count) == pytest.approx(2 * margin)


def test_the_count_is_the_least_with_the_power() -> None:
    count = equivalence.needed_count(0.02, 0.01, 20)
    assert count is not None
    assert equivalence.power(0.02, 0.01, count) >= equivalence.SURE
    assert equivalence.power(0.02, 0.01, count - 1) < equivalence.SURE
    assert equivalence.needed_count(0.02, 0.2, 20) is None
    assert equivalence.needed_count(0.02, 0.0, 20) == 3


def test_the_smallest_worsening_found_is_the_margin_and_what_noise_adds() -> None:
    assert equivalence.smallest_found(0.02, 0.0, 5) == 0.02
    assert equivalence.smallest_found(0.02, 0.0, 1) is None
    calm, noisy = (equivalence.smallest_found(0.02, d, 5) for d in (0.002, 0.2))
    assert calm is not None
    assert noisy is not None
    # Little noise: the mean is normal, and 90 % of it lie above its mean less 1.28.
    assert calm == pytest.approx(0.02 + 1.2816 * 0.002 / math.sqrt(5), rel=1e-4)
    # Much of it: the power of a t-test, by the noncentral distribution.
    critical = stats.t.ppf(0.95, 4)
    power = stats.nct.sf(critical, 4, noisy * math.sqrt(5) / 0.2)
    assert power == pytest.approx(0.9, abs=2e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("count", [3, 5, 10])
def test_at_the_margin_equal_is_said_at_most_once_in_twenty(count: int) -> None:
    """40,000 samples: the share's deviation is at most 0.0011; four of them."""
    random = np.random.default_rng(count)
    for deviation in (0.1, 0.5, 2.0):
        pairs = 1.0 + deviation * random.standard_normal((40_000, count))
        assert _share_equal(pairs) <= 0.05 + 0.0044


@pytest.mark.statistical
def test_power_is_the_share_of_samples_that_are_called_so() -> None:
    """40,000 samples: the share's deviation is at most 0.0025; four of them."""
    random = np.random.default_rng(1)
    for count, deviation, worse in ((3, 0.2, 0.0), (5, 0.5, 0.3), (8, 0.9, 1.4)):
        pairs = worse + deviation * random.standard_normal((40_000, count))
        expected = equivalence.power(1.0, deviation, count, worse=worse)
        assert _share_equal(pairs) == pytest.approx(expected, abs=0.01)
        half = _half(pairs)
        apart = np.abs(pairs.mean(1)) > np.maximum(half, 1.0)
        expected = equivalence.power_different(1.0, deviation, count, worse=worse)
        assert np.mean(apart) == pytest.approx(expected, abs=0.01)


def _share_equal(pairs: np.ndarray) -> float:
    """As `interval` and `outcome`, many samples at once, within a margin of 1."""
    half = _half(pairs)
    first = equivalence.interval(pairs[0])
    mean = pairs.mean(1)
    assert first == pytest.approx((mean[0] - half[0], mean[0] + half[0]))
    return float(np.mean((np.abs(mean) + half) <= 1.0))


def _half(pairs: np.ndarray) -> np.ndarray:
    """Half the width of each sample's interval."""
    count = pairs.shape[1]
    half: np.ndarray = stats.t.ppf(0.95, count - 1) * pairs.std(1, ddof=1)
    return half / math.sqrt(count)


@pytest.mark.statistical
def test_the_upper_deviation_is_exceeded_once_in_five() -> None:
    """4,000 samples: the share's standard deviation is 0.0063; four of them."""
    random = np.random.default_rng(2)
    bounds = [
        equivalence.upper_deviation(random.standard_normal(5)) for _ in range(4000)
    ]
    assert np.mean(np.array(bounds) < 1) == pytest.approx(0.2, abs=0.026)
    assert equivalence.upper_deviation([1.0]) == math.inf
