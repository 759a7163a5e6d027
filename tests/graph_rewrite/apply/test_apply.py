"""`apply` and `casts`: the planned graph, with as few casts as there can be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import casts, graph_def, low, matmul_chain, nodes, rewritten, run, v1

import amp
from amp.graph_rewrite.graph import ir

BFLOAT16 = tf.bfloat16.as_datatype_enum
BOTH = pytest.mark.parametrize("emulate", [False, True], ids=["native", "emulated"])


def x() -> tf.Tensor:
    return v1.placeholder(tf.float32, [8, 8], name="x")


def value() -> np.ndarray:
    return np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def pairs(proto: object) -> list[tuple[str, int]]:
    """Each cast as (what it reads, type it makes)."""
    return [(node.input[0], node.attr["DstT"].type) for node in casts(proto)]


def shared() -> None:
    data = x()
    one = tf.matmul(data, data, name="one")
    two = tf.matmul(data, one, name="two")
    tf.exp(one, name="exp")  # float32 readers of one low tensor
    tf.math.lgamma(one, name="gamma")
    tf.identity(two, name="end")


def test_one_cast_for_each_tensor_and_direction_however_many_read_it() -> None:
    made = rewritten(graph_def(shared))
    found = pairs(made.graph)
    assert len(found) == len(set(found))
    assert ("x", BFLOAT16) in found
    assert ("one", ir.FLOAT) in found
    assert len([pair for pair in found if pair[0] in ("x", "one")]) == 2
    for name in ("exp", "gamma"):
        assert nodes(made.graph)[name].input[0] == "one/amp_to_float32"


@BOTH
def test_constants_are_rounded_at_once(emulate: bool) -> None:
    def build() -> None:
        third = tf.constant(np.full([8, 8], 1 / 3, np.float32), name="third")
        tf.matmul(x(), third, name="product")

    made = rewritten(graph_def(build), emulate=emulate)
    assert not [node for node in casts(made.graph) if "third" in node.input[0]]
    constant = nodes(made.graph)[nodes(made.graph)["product/amp_bfloat16"].input[1]]
    assert constant.op == "Const"
    got = tf.make_ndarray(constant.attr["value"].tensor).astype(np.float32)
    want = tf.cast(tf.cast(tf.fill([8, 8], 1 / 3), tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(got, want)


def test_a_value_that_was_16_bit_is_taken_from_before_its_cast() -> None:
    def build() -> None:
        half = v1.placeholder(tf.bfloat16, [8, 8], name="half")
        single = tf.cast(half, tf.float32, name="single")
        tf.matmul(single, single, name="product")

    made = rewritten(graph_def(build))
    assert list(nodes(made.graph)["product/amp_bfloat16"].input) == ["half", "half"]
    assert made.report.casts == 1  # the product, fetched in float32


def test_a_cast_down_and_up_by_the_user_is_never_cancelled() -> None:
    def build() -> None:
        rounded = tf.cast(tf.cast(x(), tf.bfloat16, name="down"), tf.float32, name="up")
        tf.exp(rounded, name="exp")
        tf.matmul(rounded, rounded, name="product")

    made = rewritten(graph_def(build))
    assert list(nodes(made.graph)["exp"].input) == ["up"]
    assert list(nodes(made.graph)["up"].input) == ["down"]
    assert list(nodes(made.graph)["product/amp_bfloat16"].input) == ["down", "down"]


def test_no_cast_reads_what_it_gives_back() -> None:
    made = rewritten(graph_def(shared))
    for node in casts(made.graph):
        source = nodes(made.graph)[node.input[0]]
        assert source.op != "Cast"


def test_statistics_of_batch_norm_are_float32() -> None:
    def build() -> None:
        data = v1.placeholder(tf.float32, [8, 8], name="x")
        ones, zeros = tf.ones([8]), tf.zeros([8])
        product = tf.reshape(tf.matmul(data, data, name="product"), [1, 2, 4, 8])
        made = tf.raw_ops.FusedBatchNormV3(
            x=product, scale=ones, offset=zeros, mean=zeros, variance=ones, name="norm"
        )
        tf.exp(made.batch_mean, name="mean")
        tf.nn.relu(made.y, name="y")

    made = rewritten(graph_def(build))
    found = nodes(made.graph)
    assert found["norm"].attr["T"].type == BFLOAT16
    assert found["norm"].attr["U"].type == ir.FLOAT
    assert [found[name].op for name in list(found["norm"].input)[1:]] == ["Const"] * 4
    assert found["mean"].input[0] == "norm:1"  # no cast


@BOTH
def test_fetched_and_fed_tensors_stay_float32_and_keep_their_names(
    emulate: bool,
) -> None:
    proto = graph_def(shared)
    everything = [node.name for node in proto.node]
    made = rewritten(proto, fetches=everything, emulate=emulate)
    assert low(made.report) >= {"one", "two"}
    for name, got in zip(
        everything, run(made.graph, everything, {"x": value()}), strict=True
    ):
        assert got.dtype == np.float32, name
    fed = rewritten(proto, fetches=["two"], feeds=["one"], emulate=emulate)
    (got,) = run(fed.graph, ["two"], {"x": value(), "one": np.eye(8, dtype=np.float32)})
    np.testing.assert_allclose(got, value(), rtol=2.0**-7)


def test_a_result_of_16_bit_values_holds_16_bit_values() -> None:
    for emulate in (False, True):
        made = rewritten(graph_def(matmul_chain), emulate=emulate)
        data = np.random.default_rng(0).random((8, 16), dtype=np.float32)
        (got,) = run(made.graph, ["out"], {"x": data})
        back = tf.cast(tf.cast(got, tf.bfloat16), tf.float32)
        np.testing.assert_array_equal(got, back)


def test_emulation_changes_no_type_and_marks_what_it_holds() -> None:
    proto = graph_def(shared)
    made = rewritten(proto, emulate=True)
    for node in proto.node:
        assert nodes(made.graph)[node.name].attr["T"].type in (0, ir.FLOAT)
    marked = {n.name for n in made.graph.node if "_amp_emulated" in n.attr}
    assert marked == {"one", "two", "end/amp_bfloat16"}


def expressions() -> list[Callable[[tf.Tensor], tf.Tensor]]:
    return [tf.tanh, tf.nn.softmax, tf.square, lambda y: tf.transpose(y) + y, tf.abs]


@pytest.mark.parametrize("expression", expressions())
def test_emulated_agrees_with_native(
    expression: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    """The plans are the same. A native kernel may round once more inside (the product
    before the last rounding, an exponential before its sum), and Square doubles what
    came in: 4 roundings of 2**-8 of the largest value.
    """

    def build() -> None:
        tf.identity(expression(tf.matmul(x(), x(), name="product")), name="end")

    proto = graph_def(build)
    plans = [rewritten(proto, emulate=emulate) for emulate in (False, True)]
    assert low(plans[0].report) == low(plans[1].report)
    feeds = {n.name: value() for n in proto.node if n.op == "Placeholder"}
    native, emulated = (run(plan.graph, ["end"], feeds)[0] for plan in plans)
    assert np.abs(native - emulated).max() <= 2.0**-6 * np.abs(emulated).max()


def test_emulation_is_the_same_bits_under_xla_for_elementwise_arithmetic() -> None:
    def fn(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        product = tf.matmul(a, b)
        return tf.matmul(tf.abs((product + a) * b - product), b)

    random = np.random.default_rng(0)
    a = tf.constant(random.standard_normal((8, 8)), tf.float32)
    b = tf.constant(np.roll(np.eye(8), 3, 1), tf.float32)  # the product is exact
    policy = {"dtype": "bfloat16", "assignment": "all", "emulate": True}
    with amp.mixed_precision_scope(strict=True, **policy):
        plain, compiled = (tf.function(fn, jit_compile=jit)(a, b) for jit in (0, 1))
    assert sum(report.nodes_low for report in amp.reports()) >= 8
    np.testing.assert_array_equal(plain, compiled)
    assert np.abs(plain - fn(a, b)).max() > 0  # rounded indeed


@BOTH
@pytest.mark.parametrize("assignment", ["all", "cost"])
def test_a_second_rewrite_changes_nothing(emulate: bool, assignment: str) -> None:
    fields = {"emulate": emulate, "assignment": assignment}
    for build in (shared, matmul_chain, norm_once):
        once = rewritten(graph_def(build), **fields)
        twice = rewritten(once.graph, **fields)
        assert twice.graph == once.graph


def norm_once() -> None:
    data = v1.placeholder(tf.float32, [4, 8, 8, 3], name="x")
    kernel = tf.constant(np.ones([3, 3, 3, 8], np.float32) / 9)
    y = tf.nn.conv2d(data, kernel, 1, "SAME", name="conv")
    ones = tf.ones([8])
    y, mean, variance = v1.nn.fused_batch_norm(y, ones, ones)
    tf.identity(tf.nn.relu(y), name="y")
    tf.add(mean, variance, name="statistics")


@BOTH
@pytest.mark.parametrize("taken", ["y/amp_bfloat16", "y/amp_to_float32"])
def test_a_node_of_the_user_keeps_its_name_and_its_value(
    emulate: bool, taken: str
) -> None:
    """Names that this package gives may be taken."""

    def build() -> None:
        tf.matmul(x(), tf.eye(8), name="y")
        tf.constant(5.0, name=taken)

    made = rewritten(graph_def(build), fetches=("y", taken), emulate=emulate)
    got, own = run(made.graph, ["y", taken], {"x": value()})
    np.testing.assert_allclose(got, value(), atol=2.0**-8)
    assert own == 5.0
