"""`price`: what was measured comes before what the model says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf
from rewriting import graph_def, low, module_of, rules, settled, v1

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.cost.model import USUAL, CostModel, Measured, Point
from amp.graph_rewrite.cost.op_instance import Instance, Timer, Times
from amp.graph_rewrite.report import Report

FAST = dataclasses.replace(shipped_devices.CPU_AMX, native=("bfloat16", "float16"))
SLOW = dataclasses.replace(FAST, speed={"bfloat16": {"product": 0.1}})


def build() -> None:
    x = v1.placeholder(tf.float32, [512, 1024])
    w = v1.placeholder(tf.float32, [1024, 1024])
    y = tf.nn.relu(tf.matmul(x, w, name="first"), name="relu")
    tf.tanh(tf.matmul(y, w[:, :512], name="second"), name="end")


def report(timer: Timer, graph: Callable[[], object] = build, **fields: Any) -> Report:
    """Of a rewrite; its laws (a second one changes nothing) are checked on the way."""
    fields = {"device": FAST, "assignment": "cost"} | fields
    given = settled(**fields)
    module = module_of(graph_def(graph))
    names = frozenset(["end"])
    return rewrite_lib.rewrite(module, given, fetches=names, timer=timer).report


def says(**by_op: Times) -> Timer:
    """A timer that knows operations by their op, and nothing else."""

    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        ops = {one.key: one.key.split()[0] for one in wanted}
        return {key: by_op[op] for key, op in ops.items() if op in by_op}

    return timer


def test_a_measurement_overrides_the_model_both_ways() -> None:
    assert {"first", "second"} <= low(report(says()))
    slow = report(says(MatMul=(1e-3, 2e-3)))
    assert low(slow) == set()
    assert not low(report(says(), device=SLOW))
    fast = report(says(MatMul=(10.0, 1.0)), device=SLOW)
    assert {"first", "second"} <= low(fast)
    assert fast.seconds32 == pytest.approx(20.0, rel=0.01)


def test_both_precisions_come_from_one_measurement() -> None:
    """Predicted times are those measured, not one measured and one of the model."""
    told = report(says(MatMul=(3.0, 1.0), Cast=(1e-9, 1e-9)))
    assert told.seconds32 == pytest.approx(6.0, rel=0.05)
    assert told.seconds16 == pytest.approx(2.0, rel=0.05)


def test_an_operation_that_fails_in_16_bits_stays_float32() -> None:
    told = report(says(MatMul=(10.0, math.inf)))
    assert not {"first", "second"} & low(told)
    assert rules(told)["first"] == "kernel"
    assert "fails in bfloat16" in told.explain("first")
    assert math.isfinite(told.seconds16)


def test_what_was_not_measured_is_priced_on_the_scale_of_what_was() -> None:
    def one_of_two(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        products = [one for one in wanted if one.work == "matmul"]
        assert len(products) == 2
        given = products[0]
        return {given.key: (given.predicted[0] * 5, given.predicted[0] * 20)}

    assert not {"first", "second"} & low(report(one_of_two))


def test_an_op_that_was_measured_tells_of_itself_before_others_of_its_work() -> None:
    near, far = (1e-4, 1e-4), (1e-2, 1e-2)
    points = [
        Point("Relu", "elementwise", near, (1e-4, 9e-4)),
        Point("AddV2", "elementwise", far, (3e-2, 1e-2)),
    ]

    def ratios(op: str, work: str, predicted: float) -> Times:
        return Measured(points=points).ratios(op, work, predicted, start=3e-6)

    assert ratios("Relu", "elementwise", 1e-2) == pytest.approx((1.0, 9.0))
    assert ratios("AddV2", "elementwise", 1e-4) == pytest.approx((3.0, 1.0))
    for predicted, expected in ((1e-4, (1.0, 9.0)), (1e-2, (3.0, 1.0))):
        assert ratios("Mul", "elementwise", predicted) == pytest.approx(expected)
    assert ratios("MatMul", "matmul", 1e-4) == (1.0, 1.0)


def test_an_operation_that_mostly_starts_says_nothing_about_one_that_works() -> None:
    """Sums of 13,000 elements took a third of what is predicted.

    By that all sums of a GRU's gradient were priced: 16 ms, for 28 as predicted.
    """
    small, large = (4e-6, 4e-6), (2e-4, 1e-4)
    start = Point("AddN", "elementwise", small, (1e-6, 2e-6))
    work = Point("Relu", "elementwise", large, (6e-4, 1e-4))

    def ratios(points: Sequence[Point], predicted: float) -> Times:
        measured = Measured(points=points)
        return measured.ratios("AddN", "elementwise", predicted, start=3e-6)

    assert ratios([start], 5e-6) == pytest.approx((0.25, 0.5))
    assert ratios([start], 2e-4) == (1.0, 1.0)
    assert ratios([start, work], 2e-4) == pytest.approx((3.0, 1.0))
    assert ratios([work], 5e-6) == (1.0, 1.0)


def test_what_kernels_differ_by_among_themselves_says_nothing_about_others() -> None:
    """One product of a perceptron, at 0.85 of its price, had set that of all."""
    node = "matmul", 10**6, 1e12
    alone = CostModel(shipped_devices.CPU_AMX, "bfloat16")
    high, low = alone.node(*node)

    def priced(*ratios: float) -> Times:
        seen = high * ratios[0], low * ratios[1]
        points = [Point("MatMul", "matmul", (high, low), seen)]
        found = alone.with_measured(Measured(points=points)).node(*node, "MatMul")
        return found[0] / high, found[1] / low

    assert priced(0.85, 1.3) == (1.0, 1.0)
    assert priced(7.0, 0.1) == pytest.approx((7.0 / USUAL, 0.1 * USUAL))


def test_a_cast_takes_what_the_one_nearest_in_size_took() -> None:
    alone = CostModel(shipped_devices.CPU_AMX, "bfloat16")
    seconds = alone.cast((2**20,))
    points = [Point("Cast", "cast", (seconds,) * 2, (seconds, 1.6 * seconds))]
    found = alone.with_measured(Measured(points=points)).cast((2**20,))
    assert found == pytest.approx(1.3 * seconds)


def test_an_operation_that_follows_its_forward_op_costs_what_was_measured() -> None:
    def pools() -> None:
        y = v1.placeholder(tf.float32, [64, 32, 32, 64])
        window, found = tf.ones([1, 1, 64, 64]), []
        for padding in ("SAME", "VALID"):  # the model prices both the same
            x = tf.nn.conv2d(y, window, 1, "SAME")
            pooled = tf.nn.conv2d(tf.nn.max_pool2d(x, 2, 2, padding), window, 1, "SAME")
            found += tf.gradients(pooled, y)
        tf.add_n(found, name="end")

    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        seconds = iter((1.0, 3.0))
        return {
            one.key: (next(seconds), 9.0) if one.op == "MaxPoolGrad" else (1e-6, 1e-6)
            for one in wanted
        }

    told = report(timer, pools)
    assert told.seconds32 == pytest.approx(4.0, rel=0.01)
    assert told.measured_share > 0.98


def test_a_cast_costs_what_was_measured() -> None:
    assert low(report(says()))
    assert not low(report(says(Cast=(1.0, 1.0))))


def test_the_report_says_how_much_was_measured() -> None:
    nothing, products = report(says()), report(says(MatMul=(9.0, 1.0)))
    assert nothing.measured_share == 0.0
    assert "priced by    measurement 0%, model 100%" in str(nothing)
    assert 0.98 < products.measured_share < 1.0


@pytest.mark.parametrize("fields", [{"assignment": "all"}, {"emulate": True}])
def test_no_choice_no_difference(fields: dict[str, Any]) -> None:
    given = [report(timer, **fields) for timer in (says(), says(Relu=(1.0, 9.0)))]
    assert low(given[0]) == low(given[1])
