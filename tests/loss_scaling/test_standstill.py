"""A job stands still once no gradient is finite and its scale can fall no more."""

from __future__ import annotations

import pytest

from amp.loss_scaling import ConstantLossScale, DynamicLossScale
from amp.loss_scaling.standstill import LIMIT, Standstill
from amp.loss_scaling.tally import Tally

RULE = DynamicLossScale(minimum=1.0)


def told(rule, readings):
    """What is told at each reading of a scale, of calls and of those that failed."""
    seen = Standstill()
    return [
        bool(seen.reached(rule, scale, lambda made=(calls, bad): tally(*made)))
        for scale, calls, bad in readings
    ]


def tally(calls, bad):
    return Tally(calls, {"w": bad})


def test_calls_count_from_the_first_reading_at_the_smallest_scale():
    readings = [(1.0, calls, calls) for calls in (30, 29 + LIMIT, 30 + LIMIT)]
    assert told(RULE, readings) == [False, False, True]


@pytest.mark.parametrize("rule", [ConstantLossScale(8.0), DynamicLossScale(8.0)])
def test_a_constant_scale_cannot_fall(rule):
    readings = [(8.0, 20, 20), (8.0, 20 + LIMIT, 20 + LIMIT)]
    assert told(rule, readings) == [False, rule.bounds is None]


def test_a_scale_that_could_fall_is_waited_for_and_its_tally_not_read():
    def unread():
        raise AssertionError

    assert not Standstill().reached(RULE, 2.0, unread)


def test_one_finite_call_begins_the_count_anew():
    readings = [(1.0, 30, 30), (1.0, 40, 39), (1.0, 30 + LIMIT, 29 + LIMIT)]
    assert told(RULE, readings) == [False] * 3
    readings.append((1.0, 40 + LIMIT, 39 + LIMIT))
    assert told(RULE, readings)[-1]


def test_a_scale_that_grew_meanwhile_begins_the_count_anew():
    readings = [(1.0, 30, 30), (2.0, 31, 30), (1.0, 31 + LIMIT, 30 + LIMIT)]
    assert told(RULE, readings) == [False] * 3


def test_a_job_that_takes_no_step_is_not_said_to_stand_still():
    assert told(RULE, [(1.0, 30, 30)] * 3) == [False] * 3
