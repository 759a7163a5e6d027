"""`ties`: what is compared, and what one kernel leaves for another, has one type.

Prices here are set so that splitting what is tied would be the cheapest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import (
    graph_def,
    low,
    nodes,
    rewritten,
    rules,
    run,
    settled,
    spec,
    traced,
    v1,
)

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.candidates import ties
from amp.graph_rewrite.candidates.ties import Tie
from amp.graph_rewrite.cost import priced
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph.calls import FunctionUse

Select = Callable[[tf.Tensor], tf.Tensor]
GAINS, LOSES = (1.0, 0.5), (0.5, 1.0)  # seconds in (float32, 16 bits)
IDS = [0, 0, 0, 1, 1, 2, 2, 2]


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, Times]], None]:
    """Sets the price of every node by its op, 0 for others."""

    def install(by_op: Mapping[str, Times]) -> None:
        monkeypatch.setattr(
            priced, "_time", lambda _, view, __: by_op.get(view.node.op, (0.0, 0.0))
        )

    return install


def values() -> np.ndarray:
    """Numbers that bfloat16 rounds, all of them, and keeps apart."""
    order = np.random.default_rng(1).permutation(64).reshape(8, 8)
    return (64.0 + order + 2.0**-10).astype(np.float32)


def pooled(y: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(tf.reshape(y, [1, 8, 8, 1]), 2, 2, "VALID")


def of_the_largest(y: tf.Tensor) -> tf.Tensor:
    return tf.where(y >= tf.nn.top_k(y, 3)[0][:, -1:], y, tf.zeros_like(y))


def unclipped(y: tf.Tensor, clipped: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.equal(y, clipped), clipped, tf.zeros_like(y))


SELECTS: dict[str, Select] = {
    "UnsortedSegmentMax": lambda y: tf.math.unsorted_segment_max(y, IDS, 3),
    "UnsortedSegmentMin": lambda y: tf.math.unsorted_segment_min(y, IDS, 3),
    "SegmentMax": lambda y: tf.math.segment_max(y, IDS),
    "SegmentMin": lambda y: tf.math.segment_min(y, IDS),
    "Max": lambda y: tf.reduce_max(y, 1),
    "Min": lambda y: tf.reduce_min(y, 0),
    "MaxPool": pooled,
    "TopKV2": of_the_largest,
    "Maximum": lambda y: unclipped(y, tf.maximum(y, 95.5)),
    "Minimum": lambda y: unclipped(y, tf.minimum(y, 95.5)),
}
MOVES = ("GatherV2", "Reshape", "SelectV2", "StridedSlice")
# Those that are float32 unless a policy allows them.
KEPT = ("Max", "Min", "SegmentMin", "UnsortedSegmentMax", "UnsortedSegmentMin")
COMPARES = ("Equal", "GreaterEqual", "MaxPoolGrad")


def gradient(select: Select) -> Callable[[], None]:
    def build() -> None:
        x = v1.placeholder(tf.float32, [8, 8], name="x")
        y = tf.matmul(x, tf.eye(8), name="product")
        chosen = select(y)
        rows = tf.reshape(chosen, [-1, chosen.shape[-1]])
        again = tf.matmul(rows, tf.eye(chosen.shape[-1]), name="again")
        (grad,) = tf.gradients(again, y)
        tf.identity(grad, name="grad")

    return build


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("op", SELECTS)
def test_the_gradient_of_a_selection_flows_where_it_does_in_float32(
    op: str, allowed: bool, prices: Any
) -> None:
    proto = graph_def(gradient(SELECTS[op]))
    fields = {"allow": KEPT} if allowed else {}
    (expected,) = run(proto, ["grad"], {"x": values()})
    assert 0 < np.count_nonzero(expected) < expected.size
    for gains in itertools.product((GAINS, LOSES), repeat=3):
        by_op = dict.fromkeys(MOVES, gains[0]) | dict.fromkeys(COMPARES, gains[1])
        prices({"MatMul": LOSES, op: gains[2]} | by_op)
        twin = rewritten(proto, fetches=["grad"], assignment="cost", **fields)
        (found,) = run(twin.graph, ["grad"], {"x": values()})
        np.testing.assert_array_equal(found != 0, expected != 0)


@pytest.mark.parametrize("op", ["SegmentMax", "MaxPool"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_selection_and_the_comparison_with_it_have_one_type(
    op: str, dtype: str, prices: Any
) -> None:
    proto = graph_def(gradient(SELECTS[op]))
    seen = set()
    for one, other in itertools.product((GAINS, LOSES, (1.0, 0.01)), repeat=2):
        prices({"MatMul": LOSES, op: one} | dict.fromkeys(COMPARES, other))
        twin = rewritten(proto, A100, fetches=["grad"], assignment="cost", dtype=dtype)
        ops = {name: node.op for name, node in nodes(proto).items()}
        turned = {ops[name] for name in low(twin.report)} & {op, *COMPARES}
        seen.add(len(turned))
    assert seen == {0, 2}


def test_what_is_tied_to_a_float32_node_stays_float32_and_names_it(prices: Any) -> None:
    proto = graph_def(gradient(SELECTS["SegmentMax"]))
    twin = rewritten(proto, fetches=["grad"], deny=("Equal",))
    found = {d.op: d for d in twin.report.decisions}
    assert found["SegmentMax"].rule == "tied"
    assert nodes(proto)[found["SegmentMax"].cause].op == "Equal"


@pytest.mark.parametrize("order", [1, -1])
def test_a_tie_that_is_held_stays_so_where_another_joins_it(order: int) -> None:
    a, b, c = ((FunctionUse("", False), name) for name in "abc")
    both = [Tie(frozenset({a, b}), "x", held=True), Tie(frozenset({b, c}), "y")]
    (one,) = ties._joined(both[::order])
    assert (one.members, one.held) == ({a, b, c}, True)


def test_ties_hold_across_loops_and_branches(prices: Any) -> None:
    """The forward loop leaves both operands of the comparison on tensor lists."""

    @tf.function
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            product = tf.matmul(y, tf.eye(8))
            most = tf.math.segment_max(product, IDS)
            return i + 1, product * 0.5 + tf.gather(most, IDS)

        loop = tf.while_loop(lambda i, _: i < 2, body, [tf.constant(0), x])
        return tf.gradients(loop[1], x)[0]

    module, _ = traced(fn, spec(8, 8))
    seen = set()
    for gains in itertools.product((GAINS, LOSES), repeat=3):
        by_op = {"SegmentMax": gains[0], "Equal": gains[1]}
        lists = ("TensorListPushBack", "TensorListPopBack")
        prices({"MatMul": LOSES} | by_op | dict.fromkeys(lists, gains[2]))
        report = rewrite_lib.rewrite(module, settled(assignment="cost")).report
        turned = {d.op for d in report.decisions if d.dtype == "bfloat16"}
        seen.add(len(turned & by_op.keys()))
    assert seen == {0, 2}


def recurrent(backward: bool = True) -> None:
    x = v1.placeholder(tf.float32, [5, 4, 8], name="x")
    y = tf.reshape(tf.matmul(tf.reshape(x, [20, 8]), tf.eye(8)), [5, 4, 8])
    state, lengths = tf.zeros([1, 4, 8]), tf.fill([4], 5)
    params = v1.placeholder(tf.float32, [576], name="params")
    inputs = (y, state, state, params)
    out = tf.raw_ops.CudnnRNNV3(
        input=y,
        input_h=state,
        input_c=state,
        params=params,
        sequence_lengths=lengths,
        name="forward",
    )
    tf.identity(out.output, name="out")
    kept = tf.identity(out.reserve_space, name="kept")
    if not backward:
        return
    grads = tf.raw_ops.CudnnRNNBackpropV3(
        **dict(zip(("input", "input_h", "input_c", "params"), inputs, strict=True)),
        sequence_lengths=lengths,
        output=out.output,
        output_h=out.output_h,
        output_c=out.output_c,
        output_backprop=tf.ones([5, 4, 8]),
        output_h_backprop=state,
        output_c_backprop=state,
        reserve_space=kept,
        host_reserved=out.host_reserved,
        name="backward",
    )
    tf.identity(grads.input_backprop, name="end")


def test_reserve_space_is_never_cast_and_its_kernels_turn_together(prices: Any) -> None:
    proto = graph_def(recurrent)
    seen = set()
    for gains in itertools.product((GAINS, LOSES, (1.0, 0.01)), repeat=2):
        ops = ("CudnnRNNV3", "CudnnRNNBackpropV3")
        prices(dict(zip(ops, gains, strict=True)))
        fields = {"dtype": "float16", "assignment": "cost"}
        twin = rewritten(proto, A100, fetches=["out", "end"], **fields)
        turned = low(twin.report) & {"forward", "backward"}
        assert turned in (set(), {"forward", "backward"})
        assert nodes(twin.graph)["kept"].input == ["forward:3"]
        assert nodes(twin.graph)["backward"].input[11] == "kept"
        seen.add(bool(turned))
    assert seen == {True, False}


def test_reserve_space_is_not_rounded_under_emulation() -> None:
    proto = graph_def(recurrent)
    twin = rewritten(proto, fetches=["out", "end"], emulate=True, dtype="float16")
    assert {"forward", "backward"} <= low(twin.report)
    assert nodes(twin.graph)["kept"].input == ["forward:3"]
    assert nodes(twin.graph)["backward"].input[11] == "kept"


def test_a_kernel_whose_reserve_space_leaves_the_graph_stays_float32() -> None:
    proto = graph_def(lambda: recurrent(backward=False))
    report = rewritten(proto, A100, fetches=["out", "kept"], dtype="float16").report
    assert rules(report)["forward"] == "tied"
    assert "kept" not in low(report)


def normalised() -> None:
    x = v1.placeholder(tf.float32, [2, 4, 4, 8], name="x")
    y = tf.nn.conv2d(x, tf.ones([1, 1, 8, 8]), 1, "SAME")
    ones = tf.ones([8])
    out = tf.raw_ops.FusedBatchNormV3(
        x=y, scale=ones, offset=ones, mean=ones[:0], variance=ones[:0], name="forward"
    )
    grads = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=out.y,
        x=y,
        scale=ones,
        reserve_space_1=out.reserve_space_1,
        reserve_space_2=out.reserve_space_2,
        reserve_space_3=tf.identity(out.reserve_space_3, name="kept"),
        name="backward",
    )
    tf.nn.conv2d(grads.x_backprop, tf.ones([1, 1, 8, 8]), 1, "SAME", name="end")


@pytest.mark.parametrize("assignment", ["cost", "all"])
def test_batch_normalisation_and_its_gradient_turn_together(
    assignment: str, prices: Any
) -> None:
    proto = graph_def(normalised)
    for gains in itertools.product((GAINS, LOSES), repeat=2):
        ops = ("FusedBatchNormV3", "FusedBatchNormGradV3")
        prices({"Identity": GAINS} | dict(zip(ops, gains, strict=True)))
        fields = {"dtype": "float16", "assignment": assignment}
        twin = rewritten(proto, A100, fetches=["end"], **fields)
        turned = low(twin.report)
        assert turned & {"forward", "backward"} in (set(), {"forward", "backward"})
        assert "kept" not in turned


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("device", [[], [A100]])
def test_kernels_of_pooling_are_tied_to_those_of_its_gradient(
    xla: bool, device: list[Any]
) -> None:
    """What XLA compiles chooses by the operand and does not look at the result."""

    def step(x: tf.Tensor) -> tf.Tensor:
        y = x @ tf.eye(8)
        loss = tf.reduce_sum(pooled(y) @ tf.ones([1, 1]))
        return tf.gradients(loss, y)[0] @ tf.eye(8)

    module, _ = traced(tf.function(step, jit_compile=xla), spec(8, 8))
    made = rewrite_lib.rewrite(module, settled(*device, deny=("MaxPoolGrad",)))
    pool = next(d for d in made.report.decisions if d.op == "MaxPool")
    assert pool.rule == ("follow" if xla else "tied")
