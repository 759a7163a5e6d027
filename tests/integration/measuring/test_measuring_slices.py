"""`Slices`: measuring takes no more than its share of the time of the calls."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from rewriting import settled

from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.integration.measuring import job_timer, measuring_slices
from amp.integration.measuring.measuring_slices import (
    MOST_SECONDS,
    SHARE,
    SLICE_SECONDS,
    Slices,
)
from amp.integration.process import PROCESS
from tests.integration.measuring.test_operation_timer import made


class Bench:
    """A clock, which goes on as it is read, and a measurement that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.order = 0.0, seconds, list[str]()
        self.asked: list[float] = []

    def clock(self) -> float:
        self.now += 1e-9
        return self.now

    def measured(
        self, missing: Sequence[Instance], left: float, function: str
    ) -> dict[str, Times]:
        self.now += self.seconds
        PROCESS.measuring.spent += self.seconds
        self.order += [one.key for one in missing]
        self.asked.append(left)
        return {one.key: (1.0, 0.5) for one in missing}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A measurement of an operation takes 20 ms."""
    monkeypatch.delenv("AMP_TUNE_BUDGET")
    one = Bench(0.02)
    monkeypatch.setattr(job_timer, "measured", one.measured)
    monkeypatch.setattr(job_timer, "keep", lambda *_: None)
    return one


def operations(count: int, predicted: float = 1e-5) -> list[Instance]:
    one = dataclasses.replace(made("Relu", (8,)), predicted=(predicted, predicted))
    return [dataclasses.replace(one, key=str(number)) for number in range(count)]


def slices(
    bench: Bench, count: int, predicted: float = 1e-5, budget: float = 10.0
) -> Slices:
    given = settled(assignment="cost", tune_budget=budget)
    return Slices(operations(count, predicted), given, "f", bench.clock)


def called(one: Slices, calls: int, seconds: float) -> None:
    for _ in range(calls):
        one.called(seconds)
        one.take()


def test_the_first_call_pays_for_nothing(bench: Bench) -> None:
    one = slices(bench, 3)
    called(one, 1, 1000.0)
    assert bench.order == []


@pytest.mark.parametrize("seconds", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("each", [1e-3, 0.02, 0.4])
def test_measuring_takes_its_share_of_the_calls(
    bench: Bench, seconds: float, each: float
) -> None:
    """But for what the last operation of a slice took longer than was expected."""
    bench.seconds = each
    one = slices(bench, 10_000, budget=1e6)
    passed = 0.0
    for _ in range(5000):
        one.called(seconds)
        one.take()
        passed += seconds
        assert bench.now <= SHARE * passed + SLICE_SECONDS + each
    if SHARE * passed > 2 * SLICE_SECONDS:
        assert bench.now > 0.5 * SHARE * passed or one.over


def test_a_slice_ends_when_its_time_is_used(bench: Bench) -> None:
    one = slices(bench, 100)
    called(one, 2, SLICE_SECONDS / SHARE)
    assert 1 < len(bench.order) <= SLICE_SECONDS / bench.seconds + 1


def test_a_long_operation_waits_until_the_calls_pay_for_it(bench: Bench) -> None:
    one = slices(bench, 1, predicted=0.5)
    called(one, 2, SLICE_SECONDS / SHARE)
    assert bench.order == []
    called(one, 300, SLICE_SECONDS / SHARE)
    assert bench.order == ["0"]
    assert bench.asked[0] > MOST_SECONDS


def test_the_most_telling_come_first_and_each_once(bench: Bench) -> None:
    one = slices(bench, 7)
    called(one, 100, 1.0)
    assert bench.order == [str(number) for number in range(7)]
    assert one.over


def test_the_budget_of_the_process_bounds_all_slices(bench: Bench) -> None:
    one = slices(bench, 1000, budget=1.0)
    called(one, 1000, 10.0)
    assert one.over
    assert bench.now == pytest.approx(1.0, abs=job_timer.LEAST_SECONDS)


def test_nothing_is_measured_while_another_function_is(bench: Bench) -> None:
    one = slices(bench, 3)
    with job_timer.MEASURING:
        called(one, 10, 10.0)
    assert bench.order == []


def test_calls_without_a_question_pay_too(bench: Bench) -> None:
    one = slices(bench, 3)
    called(one, 2, 0.01)
    calls = one.calls_to(0.0)
    assert calls == pytest.approx(SLICE_SECONDS / SHARE / 0.01, abs=2)
    one.passed(calls)
    called(one, 1, 0.01)
    assert bench.order


def test_the_log_says_once_that_operations_are_measured(
    bench: Bench, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "amp")
    for _ in range(2):
        called(slices(bench, 3), 10, 10.0)
    told = [r for r in caplog.records if "measured between calls" in r.message]
    assert len(told) == 1
    assert told[0].levelno == logging.INFO
    shares = 100 * measuring_slices.SHARE, 100 * measuring_slices.SHARE_IN_DOUBT
    assert "{:.0f} to {:.0f} % of their time".format(*shares) in told[0].message


def test_more_is_measured_where_predictions_are_wrong(bench: Bench) -> None:
    one, other = slices(bench, 100), slices(bench, 100)
    other.in_doubt = True
    called(one, 100, 0.1)
    bench.order, told = [], len(bench.order)
    called(other, 100, 0.1)
    ratio = measuring_slices.SHARE_IN_DOUBT / measuring_slices.SHARE
    # A slice of two operations at a time, so that one may be short of one slice.
    assert told * ratio - 2 * ratio <= len(bench.order) <= told * ratio + 2 * ratio
