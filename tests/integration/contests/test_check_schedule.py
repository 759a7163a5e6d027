"""Checks come when the rules say, however calls are counted."""

from __future__ import annotations

import pytest

from amp.integration.contests.check_schedule import CheckSchedule


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
