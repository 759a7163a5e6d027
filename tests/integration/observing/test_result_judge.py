"""`ResultJudge`: what has lost half of its digits is at fault, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from amp.integration.observing import result_judge
from amp.integration.observing.result_judge import SAMPLE, ResultJudge, most_off

RANDOM = np.random.default_rng(1)
UNIT = 2.0**-8


def judge(*exact: np.ndarray, written: bool = False) -> ResultJudge:
    names = [f"result_{number}" for number in range(len(exact))]
    return ResultJudge(exact, UNIT, names, [written] * len(exact))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return result_judge.errors([found], [wanted]).each[0]


@pytest.mark.parametrize(("unit", "most"), [(2.0**-8, 2.0**-4), (2.0**-12, 2.0**-6)])
def test_results_may_lose_half_of_their_digits(unit: float, most: float) -> None:
    assert most_off(unit) == most


def test_what_is_not_finite_in_float32_counts_only_where_it_is_otherwise() -> None:
    wanted = np.array([3.0, np.inf, np.nan, -np.inf, 4.0])
    assert error(wanted, wanted) == 0.0
    near = np.array([3.0, np.inf, np.nan, -np.inf, 4.5])
    assert error(near, wanted) == 0.1
    for number in range(5):
        found = wanted.copy()
        found[number] = -np.inf if number != 3 else 0.0
        assert error(found, wanted) == np.inf


def test_a_few_elements_may_have_been_chosen_otherwise() -> None:
    """One of 32, however far it is off: a filter of the largest, say."""
    wanted = RANDOM.normal(size=96)
    found = wanted.copy()
    found[:3] = [-np.inf, 1e9, np.nan]
    assert error(found, wanted) == 0.0
    found[3] = 100.0
    assert error(found, wanted) > 1.0


def test_a_mask_hides_nothing() -> None:
    wanted = RANDOM.normal(size=(64, 64))
    found = wanted * (1 + RANDOM.choice([-0.5, 0.5], size=(64, 64)))
    masked = RANDOM.random(size=(64, 64)) < 0.5
    found[masked] = wanted[masked] = -1e9
    assert 0.3 < error(found, wanted) < 0.6


@pytest.mark.parametrize("size", [SAMPLE, 3 * SAMPLE + 5])
def test_of_large_results_a_sample_is_looked_at(size: int) -> None:
    """Which meets every column, also of rows whose length is even."""
    step = result_judge.step(size)
    assert step % 2 == 1
    assert SAMPLE / 2 <= size / step <= SAMPLE
    met = {number % 64 for number in range(0, size, step)}
    assert len(met) == 64


@pytest.mark.parametrize(("written", "tells"), [(False, 2.0**15), (True, 2.0**8)])
def test_what_float32_does_not_tell_is_not_judged(written: bool, tells: float) -> None:
    """Means that are 0 by construction, but for rounding: 1e-8 and 1e-3."""
    exact = [np.array([1.0, 2.0]), np.array([1e-8])]
    one = judge(*exact, written=written)
    near = one.errors([np.array([1.0, 2.0]), np.array([1e-8 * (1 + 0.99 * tells)])])
    assert one.faults(near) == [1]
    far = 1e-8 * (1 + 1.01 * tells)
    found = one.errors([np.array([1.0, 2.0 + 2**-8]), np.array([far])])
    assert one.is_fine(found)
    assert one.outcome(found, 0).text == (
        "results off by 0.0017 at most (1 of 2 are rounding in float32 too)"
    )
    worse = one.errors([np.array([1.0, 3.5]), np.array([far])])
    assert one.faults(worse) == [0]
    assert one.cause(worse) == "result result_0 off by 0.67"
    left = one.errors([np.array([1.0, np.inf]), np.array([1e-8])])
    assert one.faults(left) == [0]


def test_the_worst_is_first_and_the_bound_is_no_fault() -> None:
    exact = [np.ones(2), np.ones(2), np.ones(2)]
    one = judge(*exact)
    found = one.errors([np.full(2, 1.5), np.full(2, 1.0625), np.full(2, 3.0)])
    assert one.faults(found) == [2, 0]
    assert one.loses(found, found)
    assert not one.moved(exact)
    assert one.moved([np.ones(2), np.ones(2), np.full(2, 1.07)])
