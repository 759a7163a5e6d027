"""`tensors`: one cast for each tensor and direction; what that spares is counted."""

from __future__ import annotations

import tensorflow as tf
from rewriting import (
    context_of,
    graph_def,
    module_of,
    plan_of,
    settled,
    spec,
    traced,
    v1,
)

from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.plan import CastsSaved, Plan
from amp.graph_rewrite.rewrite import rewrite

CLOCK = CostModel(A100, "bfloat16")


def planned(build: object, **fields: object) -> Plan:
    module = module_of(graph_def(build))
    return plan_of(module, context_of(module, A100, **fields), CLOCK)


def x(name: str = "x") -> tf.Tensor:
    return v1.placeholder(tf.float32, [8, 8], name=name)


def test_a_cast_serves_every_reader() -> None:
    def build() -> None:
        data = x()
        for index in range(3):
            tf.matmul(data, x(f"y{index}"), name=f"p{index}")

    plan = planned(build)
    assert plan.casts_saved == CastsSaved(shared=2)
    assert len(plan.casts) == 4


def test_reads_of_constants_are_folded() -> None:
    def build() -> None:
        data = tf.constant(1.5, shape=[8, 8])
        tf.matmul(tf.matmul(x(), data), data)

    assert planned(build).casts_saved == CastsSaved(folded=2)


def test_both_directions_of_one_tensor_are_two_casts() -> None:
    def build() -> None:
        y = tf.matmul(x(), x("y"), name="product")
        for index in range(2):
            tf.math.lgamma(y, name=f"l{index}")

    plan = planned(build)
    assert (("product", 0), False) in plan.casts
    assert plan.casts_saved == CastsSaved(shared=1)


def test_a_cast_before_a_loop_is_counted_as_hoisted() -> None:
    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, tf.matmul(y, w))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    report = rewrite(traced(fn, spec(8, 8), spec(8, 8))[0], settled()).report
    assert report.casts_spared["hoisted"] == 1
    assert "1 hoisted" in str(report)
