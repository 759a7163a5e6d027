"""Checks come when the rules say, however calls are counted."""

from __future__ import annotations

import dataclasses

import pytest

from amp.graph_rewrite.outcomes import TrialOutcome
from amp.integration.contests.check_schedule import CheckSchedule
from amp.integration.contests.plan_store import Record
from amp.integration.racing import race_budget, winner_checks
from amp.integration.racing.race_log import FLOAT32, Log


@pytest.mark.parametrize(
    ("ratio", "apart"),
    [
        (1.0, [200, 800, 4000, 10_000, 10_000]),  # after 200, 1000, 5000 calls
        (1.5, [1500, 1500, 4000, 10_000, 10_000]),  # so that none costs 0.1 % of them
    ],
)
def test_checks_are_rarer_the_more_there_were_and_the_more_they_cost(
    ratio: float, apart: list[int]
) -> None:
    checks = CheckSchedule(ratio=ratio)
    found = []
    for done in range(len(apart)):
        checks.done = done
        checks.go_on()
        assert checks.left == checks.apart
        found.append(checks.apart)
    assert found == apart


def test_calls_count_down_to_none_and_what_lies_between_two_checks_stays() -> None:
    checks = CheckSchedule()
    checks.set(20)
    checks.passed(15)
    assert (checks.left, checks.apart) == (5, 20)
    checks.passed(15)  # a thread may come late
    assert (checks.left, checks.apart) == (0, 20)


def test_an_earlier_win_is_compared_with_as_long_as_float32_need_not_be_called() -> (
    None
):
    seconds = {"the cheapest": 1.0, FLOAT32: 2.0}
    won = Record("the cheapest", seconds=seconds)
    checks = CheckSchedule()
    checks.recall(won, stepped=False)
    assert (checks.ratio, checks.then) == (2.0, seconds)
    assert checks.ahead == winner_checks.CALLS_ALONE
    checks.recall(won, stepped=True)
    assert (checks.then, checks.ahead) == ({}, 2)
    doubted = dataclasses.replace(won, runs=4)
    checks.recall(doubted, stepped=False)
    assert (checks.then, checks.left) == ({}, winner_checks.DOUBTED)


def test_after_a_race_without_float32_the_first_check_is_when_it_can_be_paid() -> None:
    outcome = TrialOutcome(True, None, 1.0, 3, "ended", ())
    checks = CheckSchedule()
    log = Log({})
    log.first["the cheapest"] = 9.0
    for number in range(3):
        log.add("the cheapest", number, 1.0, 1.0)
    checks.after(log, outcome, same=False, challenged=False)
    assert checks.untried
    assert checks.left == race_budget.calls_until_affordable(log)
    log.first[FLOAT32] = 1.0
    checks.after(log, outcome, same=True, challenged=False)
    assert not checks.untried
