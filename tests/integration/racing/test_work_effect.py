"""`work_effect`: what follows from the work of a call is found, and nothing else."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from amp.integration.racing import work_effect
from amp.integration.racing.work_effect import CURVED, FITTED, SLOPE, Point, fitted


def rounds_of(count: int, noise: float = 0.0, seed: int = 0) -> list[list[Point]]:
    """Rounds of two calls of a known parabola, on a machine whose speed changes."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        speed = draw.uniform(-1.0, 1.0)
        works = [math.log(draw.randint(20, 100)) for _ in range(2)]
        found.append([(w, speed + true(w) + draw.gauss(0.0, noise)) for w in works])
    return found


def true(work: float) -> float:
    return 0.8 * work + 0.1 * work**2


def difference(rounds: list[list[Point]], low: float = 20, high: float = 100) -> float:
    """The fitted logarithm of the ratio of times at two works."""
    few, many = fitted(rounds)(np.log([low, high]))
    return float(many - few)


def test_the_shape_is_found_whatever_the_speed_of_each_round() -> None:
    want = true(math.log(100)) - true(math.log(20))
    assert difference(rounds_of(CURVED)) == pytest.approx(want, abs=1e-9)


def test_few_rounds_get_a_straight_line() -> None:
    effect = fitted(rounds_of(CURVED - 1))
    low, middle, high = effect(np.array([3.0, 3.5, 4.0]))
    assert middle == pytest.approx((low + high) / 2)


def test_before_there_are_enough_rounds_half_of_a_time_is_taken_for_fixed() -> None:
    """Of two calls of different work nobody knows who is faster, and who had more."""
    low, high = fitted(rounds_of(FITTED - 1))(np.array([3.0, 4.0]))
    assert high - low == pytest.approx(SLOPE)


def test_where_all_work_is_the_same_there_is_no_effect() -> None:
    for rounds in ([], [[(2.0, 1.0), (2.0, 5.0)]], [[(2.0, 1.0)], [(3.0, 5.0)]]):
        assert not fitted(rounds)(np.array([1.0, 2.0, 3.0])).any()


def test_two_sizes_are_told_apart() -> None:
    """As with the last batch of an epoch."""
    rounds = [[(3.0, 1.0), (4.0, 1.5)], [(4.0, 2.5), (4.0, 2.5)]] * CURVED
    low, high = fitted(rounds)(np.array([3.0, 4.0]))
    assert high - low == pytest.approx(0.5)


def test_a_call_that_was_delayed_hardly_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longest of 32 took ten times as long, which least squares counts tenfold."""
    honest = rounds_of(16, noise=0.02)
    late = max(point for points in honest for point in points)
    delay = {late: math.log(10)}
    delayed = [[(w, t + delay.get((w, t), 0.0)) for w, t in each] for each in honest]
    off = difference(delayed) - difference(honest)
    monkeypatch.setattr(work_effect, "_PASSES", 1)
    assert abs(off) < abs(difference(delayed) - difference(honest)) / 10
