"""Checks come when the rules say, however calls are counted."""

from __future__ import annotations

from amp.integration.contests.check_schedule import CheckSchedule
from amp.integration.racing import winner_checks


def test_the_next_check_is_as_far_as_the_rules_say_of_what_was_seen() -> None:
    checks = CheckSchedule(ratio=1.5)
    for done in range(len(winner_checks.CHECKS) + 2):
        checks.done = done
        checks.go_on()
        wanted = winner_checks.calls_to_check(done, 1.5)
        assert checks.left == checks.apart == wanted


def test_calls_count_down_to_none_and_what_lies_between_two_checks_stays() -> None:
    checks = CheckSchedule()
    checks.set(20)
    checks.passed(15)
    assert (checks.left, checks.apart) == (5, 20)
    checks.passed(15)  # a thread may come late
    assert (checks.left, checks.apart) == (0, 20)
