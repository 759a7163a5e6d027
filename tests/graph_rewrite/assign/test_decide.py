"""`decide`: prices and reasons; casts the graph has already cost what they cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import (
    GraphDef,
    context_of,
    graph_def,
    module_of,
    plan_of,
    rewritten,
    rules,
    v1,
)

from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.plan import Plan

SIZE = 2048
CLOCK = CostModel(A100, "bfloat16")
CAST = CLOCK.cast((SIZE, SIZE))


def planned(build: Callable[[], object], **fields: object) -> Plan:
    module = module_of(graph_def(build))
    context = context_of(module, A100, **{"assignment": "cost", **fields})
    return plan_of(module, context, CLOCK)


def x(dtype: tf.DType = tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, [SIZE, SIZE], name="x")


def product() -> None:
    data = x()
    tf.exp(tf.matmul(data, data, name="product"), name="exp")


def test_casts_are_counted_and_priced_once() -> None:
    plan = planned(product)
    assert plan.low == {"product"}
    assert plan.casts == {(("x", 0), True), (("product", 0), False)}
    shape = (SIZE, SIZE)
    moved = arithmetic.moved("matmul", [shape, shape], [shape])
    high, low = CLOCK.node("matmul", moved, 2.0 * SIZE**3)
    assert plan.seconds32 - plan.seconds16 == pytest.approx(high - low - 2 * CAST)


def test_what_is_16_bit_anyway_costs_no_cast() -> None:
    def build() -> None:
        single = tf.cast(x(tf.bfloat16), tf.float32)
        tf.matmul(single, single, name="product")

    plan = planned(build)
    assert plan.low == {"product"}
    assert plan.casts == frozenset()


def test_a_constant_costs_no_cast_down() -> None:
    def build() -> None:
        weights = tf.constant(1.5, shape=[SIZE, SIZE], name="weights")
        tf.matmul(x(), weights, name="product")

    assert planned(build).casts == {(("x", 0), True)}


def test_a_cast_that_the_graph_has_serves_the_plan() -> None:
    def build() -> None:
        data = x()
        tf.abs(tf.cast(data, tf.bfloat16, name="down"), name="abs")
        tf.matmul(data, data, name="product")

    plan = planned(build)
    assert plan.casts == {(("x", 0), True)}
    assert plan.seconds32 - plan.seconds16 == pytest.approx(
        planned(product_alone).seconds32 - planned(product_alone).seconds16 + CAST
    )


def product_alone() -> None:
    data = x()
    tf.matmul(data, data, name="product")


def small() -> GraphDef:
    def build() -> None:
        data = v1.placeholder(tf.float32, [4, 4], name="x")
        tf.matmul(data, data, name="product")

    return graph_def(build)


def test_what_would_not_be_faster_stays_float32_with_its_figures() -> None:
    report = rewritten(small(), A100, assignment="cost").report
    assert rules(report)["product"] == "cost"
    (decision,) = [d for d in report.decisions if d.node == "product"]
    assert "us in float32" in decision.cause
    assert "us in 16 bits" in decision.cause
    assert report.seconds16 == report.seconds32


def test_every_candidate_is_taken_when_asked_for_all_whatever_it_costs() -> None:
    report = rewritten(small(), A100, assignment="all").report
    assert rules(report)["product"] == "compute"
    assert report.seconds16 > report.seconds32
