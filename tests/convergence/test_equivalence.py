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
        assert equivalence.power(margin, 0.3, count) == pytest.approx(0.9)
        assert equivalence.needed_margin(0.6, count) == pytest.approx(2 * margin)


def test_the_count_is_the_least_with_the_power() -> None:
    count = equivalence.needed_count(0.02, 0.01, 20)
    assert count is not None
    assert equivalence.power(0.02, 0.01, count) >= 0.9
    assert equivalence.power(0.02, 0.01, count - 1) < 0.9
    assert equivalence.needed_count(0.02, 0.2, 20) is None
    assert equivalence.needed_count(0.02, 0.0, 20) == 3


def test_the_smallest_worsening_found_is_found_nine_times_in_ten() -> None:
    worse = equivalence.smallest_found(0.02, 0.006, 5)
    assert worse is not None
    assert 0 < worse < 0.02
    called = equivalence.power(0.02, 0.006, 5, worse=worse)
    assert called == pytest.approx(0.1, abs=1e-4)
    assert equivalence.smallest_found(0.02, 0.0, 5) == 0.02
    assert equivalence.smallest_found(0.02, 9.0, 5) == 0.0  # nothing is called equal
    assert equivalence.smallest_found(0.02, 0.0, 1) is None


@pytest.mark.statistical
@pytest.mark.parametrize("count", [3, 5, 10])
def test_at_the_margin_equal_is_said_at_most_once_in_twenty(count: int) -> None:
    """40,000 samples: the share's deviation is at most 0.0011; four of them."""
    random = np.random.default_rng(count)
    for deviation in (0.1, 0.5, 2.0):
        pairs = 1.0 + deviation * random.standard_normal((40_000, count))
        assert _share_equal(pairs) <= 0.05 + 0.0044


@pytest.mark.statistical
def test_power_is_the_share_of_samples_that_are_called_equal() -> None:
    """40,000 samples: the share's deviation is at most 0.0025; four of them."""
    random = np.random.default_rng(1)
    for count, deviation, worse in ((3, 0.2, 0.0), (5, 0.5, 0.3), (8, 0.9, 0.0)):
        pairs = worse + deviation * random.standard_normal((40_000, count))
        expected = equivalence.power(1.0, deviation, count, worse=worse)
        assert _share_equal(pairs) == pytest.approx(expected, abs=0.01)


def _share_equal(pairs: np.ndarray) -> float:
    """As `interval` and `outcome`, many samples at once, within a margin of 1."""
    count = pairs.shape[1]
    half = stats.t.ppf(0.95, count - 1) * pairs.std(1, ddof=1) / math.sqrt(count)
    first = equivalence.interval(pairs[0])
    mean = pairs.mean(1)
    assert first == pytest.approx((mean[0] - half[0], mean[0] + half[0]))
    return float(np.mean((np.abs(mean) + half) <= 1.0))


@pytest.mark.statistical
def test_the_upper_deviation_is_exceeded_once_in_five() -> None:
    """4,000 samples: the share's standard deviation is 0.0063; four of them."""
    random = np.random.default_rng(2)
    bounds = [
        equivalence.upper_deviation(random.standard_normal(5)) for _ in range(4000)
    ]
    assert np.mean(np.array(bounds) < 1) == pytest.approx(0.2, abs=0.026)
    assert equivalence.upper_deviation([1.0]) == math.inf
