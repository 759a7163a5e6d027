"""`nominee`: one analysis gives several plans, each of which is what was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf
from rewriting import CPU, decisions, graph_def, low, module_of, settled, traced

import amp
from amp.graph_rewrite.assign.nominee import (
    CUT,
    EVERYTHING,
    PRODUCTS,
    REWRITTEN,
    UNCLUSTERED,
    Nominee,
)
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared, prepare, rewrite
from amp.integration.runtime import shape_inference

v1 = tf.compat.v1


def chain() -> None:
    """product -> tanh -> reshape -> product, all named."""
    x = v1.placeholder(tf.float32, [256, 256], name="x")
    w = tf.ones([256, 256])
    y = tf.tanh(tf.matmul(x, w, name="first"), name="tanh")
    z = tf.matmul(tf.reshape(y, [128, 512]), tf.ones([512, 64]), name="second")
    tf.identity(z, name="end")


def prepared(**fields: object) -> Prepared:
    module = module_of(graph_def(chain))
    fields = {"assignment": "cost", **fields}
    return prepare(module, settled(**fields), fetches=frozenset({"end"}))


def low_of(one: Prepared, nominee: Nominee) -> set[str]:
    return low(one.made(nominee).report)


def test_the_cut_is_what_rewrite_makes() -> None:
    one = prepared()
    module, policy = one.values["given"], one.settled
    made = rewrite(module, policy, fetches=frozenset({"end"}))
    assert made.report == one.made(CUT).report


def test_products_only_converts_products_and_says_why_not_the_rest() -> None:
    report = prepared().made(PRODUCTS).report
    assert {"first", "second"} <= low(report)
    assert "tanh" not in low(report)
    assert decisions(report)["tanh"].rule == "products"


def test_everything_converts_what_the_cut_finds_too_dear() -> None:
    one = prepared()
    slow = {"bfloat16": {"elementwise": 1000.0}, "float32": {}}
    device = dataclasses.replace(CPU, slowdown=slow)
    module = one.values["given"]
    dear = prepare(module, settled(device, assignment="cost", min_gain=0.9))
    assert "tanh" not in low_of(dear, CUT)
    assert {"first", "tanh", "second"} <= low_of(dear, EVERYTHING)


def test_a_node_that_is_kept_stays_float32_for_the_reason_given() -> None:
    one = prepared()
    (use,) = one.priced.uses
    why = Reason("accuracy", "0.5 against 0.01")
    kept = CUT.keeping({use: {"tanh": why}})
    report = one.made(kept).report
    assert "tanh" in low(one.made(CUT).report)
    assert "tanh" not in low(report)
    found = decisions(report)["tanh"]
    assert (found.rule, found.cause) == (why.rule, why.cause)


def test_kept_nodes_add_up() -> None:
    use, other = FunctionUse("f", False), FunctionUse("g", False)
    a, b = Reason("accuracy", "a"), Reason("accuracy", "b")
    both = CUT.keeping({use: {"x": a}}).keeping({use: {"y": b}, other: {"z": b}})
    assert both.kept == {use: {"x": a, "y": b}, other: {"z": b}}


def test_a_plan_without_clusters_has_none() -> None:
    def gelu() -> None:
        x = v1.placeholder(tf.float32, [2048, 2048], name="x")
        y = tf.matmul(x, tf.ones([2048, 2048]))
        z = 0.5 * y * (1.0 + tf.tanh(0.8 * (y + 0.04 * y * y * y)))
        tf.matmul(z, tf.ones([2048, 2048]), name="end")

    one = prepare(
        module_of(graph_def(gelu)),
        settled(CPU_AMX, assignment="cost"),
        fetches=frozenset({"end"}),
    )
    assert one.made(CUT).report.clusters > 0
    assert one.made(UNCLUSTERED).report.clusters == 0


@pytest.mark.parametrize("length", [None, 512])
def test_a_plan_for_any_length_has_clusters_of_fixed_sizes_alone(
    length: int | None,
) -> None:
    """Batches may differ: those of an epoch are of one size, but for the last."""

    def gelu() -> None:
        x = v1.placeholder(tf.float32, [None, length, 2048], name="x")
        for y in (x, tf.ones([4, 512, 2048])):
            y = tf.reshape(y, [-1, 2048])
            y = tf.matmul(y, tf.fill([2048, 2048], tf.reduce_sum(y[:1])))
            z = 0.5 * y * (1.0 + tf.tanh(0.8 * (y + 0.04 * y * y * y)))
            tf.matmul(z, tf.ones([2048, 2048]), name="end")

    one = prepare(
        module_of(graph_def(gelu)),
        settled(CPU_AMX, assignment="cost"),
        fetches=frozenset({"end", "end_1"}),
        sizes=shape_inference.at_call((), {("x", 0): (4, 512, 2048)}),
    )
    every = one.made(CUT).report.clusters
    fixed = one.made(dataclasses.replace(CUT, lengths=False)).report.clusters
    assert every == 2
    assert fixed == (1 if length is None else 2)


def normalized(**fields: object) -> Prepared:
    """A step of training with a convolution and a batch norm, on a CPU."""
    with amp.mixed_precision_scope(dtype="bfloat16"):
        pass  # the hooks are in place: what is traced has its shapes

    def step(x: tf.Tensor, w: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch((w, offset))
            y = tf.nn.conv2d(x, w, 1, "SAME")
            mean, variance = tf.nn.moments(y, [0, 1, 2])
            y = tf.nn.batch_normalization(y, mean, variance, offset, None, 1e-3)
            loss = tf.reduce_sum(tf.square(y))
        return tape.gradient(loss, (w, offset))

    shapes = ([32, 64, 64, 16], [3, 3, 16, 16], [16])
    module, _ = traced(step, *map(tf.TensorSpec, shapes))
    return prepare(module, settled(CPU_AMX, **{"assignment": "cost", **fields}))


PRODUCTS_HERE = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


def kernels(one: Prepared, nominee: Nominee) -> int:
    made = one.made(nominee).graph
    return sum("FusedBatchNormV3" in graph.ops for graph in made.graphs())


def test_a_plan_in_float32_has_the_kernels_and_no_16_bits() -> None:
    one = normalized()
    made = one.made(REWRITTEN)
    assert not any(made.low.values())
    assert kernels(one, REWRITTEN) == 1
    assert {d.dtype for d in made.report.decisions} == {"float32"}
    assert {"Conv2D"} <= {d.op for d in made.report.decisions if d.rule == "rewritten"}
    assert made.report.casts == 0
    assert made.report.verdict.startswith("rewritten in float32, predicted 1.")
    made.left()


def test_a_plan_in_float32_gains_what_the_kernels_save() -> None:
    """And the cheapest, which has them too, is predicted to gain over the original."""
    one = normalized()
    float32, cheapest = one.foreseen(REWRITTEN), one.foreseen(CUT)
    assert cheapest.seconds < float32.seconds < float32.given == cheapest.given
    ((_, priced),) = one.priced.uses.items()
    assert float32.given - float32.seconds == pytest.approx(priced.spared)
    report = one.made(REWRITTEN).report
    assert report.seconds32 == float32.given
    assert report.seconds16 == float32.seconds
    assert one.made(one.holding({})).report == report


@pytest.mark.parametrize("fields", [{"deny": PRODUCTS_HERE}, {"min_gain": 0.99}])
def test_what_stays_as_it_is_takes_what_the_original_takes(fields: Any) -> None:
    one = normalized(**fields)
    assert not kernels(one, CUT)
    report, given = one.made(CUT).report, one.foreseen(REWRITTEN).given
    assert (report.seconds32, report.seconds16) == (given, given)


def test_in_the_place_of_another_plan_it_says_why_that_one_is_float32() -> None:
    one = normalized(deny=PRODUCTS_HERE)
    instead = REWRITTEN.keeping(one.reasons(CUT))
    rules, cheapest = (
        {d.node: (d.rule, d.cause) for d in one.made(plan).report.decisions}
        for plan in (instead, CUT)
    )
    assert rules == cheapest
    assert kernels(one, instead) == 1


def test_what_was_16_bit_as_given_makes_it_no_other_plan() -> None:
    """A cast of the program's own is no reason for XLA to compile what reads it."""

    def step(x: tf.Tensor, w: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch((w, offset))
            y = tf.cast(tf.nn.conv2d(x, w, 1, "SAME"), tf.float32)
            mean, variance = tf.nn.moments(y, [0, 1, 2])
            y = tf.nn.batch_normalization(y, mean, variance, offset, None, 1e-3)
            loss = tf.reduce_sum(tf.square(y))
        return tape.gradient(loss, (w, offset))

    low = (tf.TensorSpec(s, tf.bfloat16) for s in ([32, 64, 64, 16], [3, 3, 16, 16]))
    module, _ = traced(step, *low, tf.TensorSpec([16]))
    one = prepare(module, settled(CPU_AMX, assignment="cost"))
    report = one.made(REWRITTEN).report
    assert report.nodes_low > 0  # as given
    assert report.clusters == 0
    for each in (report, report.as_measured(2.0, 1.0)):
        assert each.verdict.startswith("rewritten in float32, predicted")


def test_all_that_is_asked_for_does_not_make_it_gain() -> None:
    """`assignment="all"` is about 16 bits, of which it has none."""
    one = normalized(assignment="all", min_gain=0.99)
    assert not one.foreseen(REWRITTEN).gains


def test_a_plan_in_float32_without_other_kernels_is_the_module_given() -> None:
    one = prepared()
    assert not one.spares
    made = one.made(REWRITTEN)
    assert made.graph is one.values["given"]
    assert not made.report.rewritten
    assert not one.foreseen(REWRITTEN).gains


@pytest.mark.parametrize("nominee", [CUT, EVERYTHING, PRODUCTS, REWRITTEN, UNCLUSTERED])
def test_making_a_plan_leaves_what_was_prepared_as_it_was(nominee: Nominee) -> None:
    one = prepared()
    before = one.made(CUT).report
    one.made(nominee)
    assert one.made(CUT).report == before
