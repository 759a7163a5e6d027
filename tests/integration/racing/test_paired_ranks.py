"""`paired_ranks`: the signed-rank test and its interval, exact."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from amp.integration.racing.paired_ranks import Interval, interval, typical


def test_the_typical_difference_is_the_median_of_the_means_of_pairs() -> None:
    values = [0.3, -1.0, 2.0, 100.0]
    means = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)]
    want = sorted(means)
    assert typical(values) == pytest.approx((want[4] + want[5]) / 2)


@pytest.mark.parametrize("count", [6, 12, 24, 96])
def test_the_interval_ends_where_the_signed_rank_test_begins_to_reject(
    count: int,
) -> None:
    from scipy import stats

    level, draw = 1 / 64, random.Random(count)
    values = [draw.gauss(0.2, 1.0) for _ in range(count)]
    found = interval(values, level)
    for end, side in ((found.low, "greater"), (found.high, "less")):
        away = -1e-9 if side == "greater" else 1e-9  # just outside, and just inside
        out = [value - (end + away) for value in values]
        inside = [value - (end - away) for value in values]
        method = "exact"
        p_out = stats.wilcoxon(out, alternative=side, method=method).pvalue
        p_in = stats.wilcoxon(inside, alternative=side, method=method).pvalue
        assert p_out <= level < p_in


def test_too_few_pairs_tell_nothing() -> None:
    assert interval([1.0] * 5, 1 / 64) == Interval(-math.inf, math.inf)
    assert interval([1.0] * 6, 1 / 64) == Interval(1.0, 1.0)


def test_six_pairs_that_agree_are_what_a_level_of_one_in_64_takes() -> None:
    assert interval([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1 / 64).low == pytest.approx(0.1)
    assert interval([0.1, 0.2, 0.3, 0.4, 0.5, -0.6], 1 / 64).low < 0
