"""`winner_checks`: a winner that is slower than float32 loses its place, cheaply."""

from __future__ import annotations

import functools
import math

import pytest
from race_machine import MACHINES, Machine, winner

from amp.integration.racing import winner_checks
from amp.integration.racing.race_log import FLOAT32, Log

RACES = 100


def check(ratio: float, seed: int, since: int, **traits: float) -> tuple[bool, float]:
    """Whether a winner keeps its place if float32 takes `ratio` as long as it does.

    Returns:
      That, and the share of the calls' time that the check cost.
    """
    machine = Machine({"cut": 1.0, FLOAT32: ratio}, seed, **traits)
    rules = functools.partial(winner_checks.checked, since=since)
    kept = winner(machine.race(rules)) == "cut"
    return kept, machine.calls[FLOAT32] * (ratio - 1) / since


@pytest.mark.statistical
@pytest.mark.parametrize("traits", MACHINES)
def test_a_check_dethrones_a_plan_that_is_slower_and_hardly_ever_another(
    traits: dict[str, float],
) -> None:
    """15 % slower shows in most checks; equally fast fails 3/512 of them, by law."""
    slow = sum(check(0.85, seed, 10_000, **traits)[0] for seed in range(RACES))
    assert slow <= RACES / 2
    wrong = RACES - sum(check(1.0, seed, 10_000, **traits)[0] for seed in range(RACES))
    bound = 3 / 512
    assert wrong / RACES <= bound + 3 * math.sqrt(bound * (1 - bound) / RACES)


@pytest.mark.parametrize("ratio", [1.02, 1.3, 3.0])
def test_a_check_costs_a_thousandth(ratio: float) -> None:
    """And one call of float32, the first, at which it is found to be too slow."""
    since = winner_checks.calls_to_check(0, ratio)
    for seed in range(20):
        kept, cost = check(ratio, seed, since, noise=0.001)
        assert kept
        assert cost <= winner_checks.SHARE + 2 * (ratio - 1) / since


def test_checks_come_after_200_1000_5000_calls_and_then_every_10000() -> None:
    sums, done = [], 0
    for number in range(5):
        done += winner_checks.calls_to_check(number, 1.0)
        sums.append(done)
    assert sums == [200, 1000, 5000, 15_000, 25_000]


def test_a_dear_check_comes_later() -> None:
    calls = winner_checks.calls_to_check(0, 2.0)
    assert calls * winner_checks.SHARE == pytest.approx(winner_checks.LEAST_CALLS)


def test_a_check_that_could_hardly_time_anything_changes_nothing() -> None:
    log = Log({})
    log.add("cut", 1, 2.0)
    log.add(FLOAT32, 1, 1.0)  # twice as fast, once
    assert winner_checks.cut_short(log, ("cut", FLOAT32)).winner == "cut"


THEN = {"cut": 1.0, FLOAT32: 1.44}  # their geometric mean is 1.2


def alone(*times: float) -> Log:
    """The log of a check before float32 was called."""
    log = Log({})
    log.first["cut"] = 9.0
    for seconds in times:
        log.add("cut", 0, seconds)
    return log


@pytest.mark.parametrize(
    ("seconds", "stays"), [(1.19, True), (1.21, False), (0.84, True), (0.83, False)]
)
def test_float32_is_not_called_while_the_winner_takes_as_long_as_when_it_won(
    seconds: float, stays: bool
) -> None:
    """Longer: it may have become the slower. Much less: the machine was another."""
    log = alone(*[seconds] * winner_checks.ALONE)
    found = winner_checks.checked(log, ("cut", FLOAT32), 200, THEN)
    assert found.winner == ("cut" if stays else None)
    assert found.out == ({FLOAT32: "not called"} if stays else {})


def test_few_calls_do_not_tell_whether_it_does() -> None:
    log = alone(*[1.0] * (winner_checks.ALONE - 1))
    assert winner_checks.checked(log, ("cut", FLOAT32), 200, THEN).winner is None


def test_once_float32_is_called_the_check_is_as_any_other() -> None:
    log = alone(*[3.0] * winner_checks.ALONE)
    log.first[FLOAT32], log.calls[FLOAT32] = 9.0, winner_checks.LOOKS[0] + 1
    for number in range(winner_checks.LOOKS[0]):
        log.add("cut", number, 3.0)
        log.add(FLOAT32, number, 1.0)
    found = winner_checks.checked(log, ("cut", FLOAT32), 200, THEN)
    assert found.winner == FLOAT32
