"""`lone_convolutions`: what XLA compiles only for its groups runs as a kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU, graph_def, rewritten, settled, spec, traced, v1

import amp
from amp.graph_rewrite.cost.loads import loads_of
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.lone_convolutions import open_lone_convolutions
from amp.graph_rewrite.rewrite import prepare, rewrite
from amp.integration.measuring import hardware

GROUPS = {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"}
SHAPE = (4, 9, 9, 12)
X = tf.random.stateless_normal(SHAPE, (1, 2))
FILTERS = np.ones((3, 3, 12, 12), np.float32)


def layer(groups: int = 12, **fields: Any) -> keras.layers.Layer:
    given = {"filters": 12, "kernel_size": 3, "padding": "same", **fields}
    made = keras.layers.Conv2D(groups=groups, **given)
    made.build(SHAPE)
    return made


def step(convolve: Callable[..., Any], variables: Any) -> Callable[..., Any]:
    """What training has: the result, and the gradients by everything."""

    def function(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = convolve(x)
            loss = tf.reduce_sum(tf.square(y))
        return y, *tape.gradient(loss, [x, *variables])

    return function


def trained(**fields: Any) -> Callable[..., Any]:
    made = layer(**fields)
    return step(made, [variable.value for variable in made.trainable_variables])


def ops_left(
    fn: Callable[..., Any], settled: Resolution, differentiable: bool = False
) -> set[str]:
    """The ops of the main graph, once calls are inlined."""
    module, _ = traced(fn, spec(*SHAPE))
    opened = open_lone_convolutions(module, settled.onednn, differentiable)
    return set(inline(opened).main.ops)


@pytest.mark.parametrize("groups", [12, 3])
def test_a_grouped_convolution_of_keras_and_its_gradients_become_kernels(
    groups: int,
) -> None:
    left = ops_left(trained(groups=groups), settled())
    assert left >= GROUPS
    assert not {op for op in left if op.endswith("PartitionedCall")}


@pytest.mark.parametrize(
    ("policy", "differentiable"),
    [
        (settled(A100), False),
        (settled(dataclasses.replace(CPU, native=())), False),
        (settled(emulate=True), False),
        (settled(), True),
    ],
    ids=["on a GPU", "without oneDNN", "emulated", "differentiable"],
)
def test_it_stays_where_no_kernel_may_take_its_place(
    policy: Resolution, differentiable: bool
) -> None:
    left = ops_left(trained(), policy, differentiable)
    assert left.isdisjoint(GROUPS)
    assert "StatefulPartitionedCall" in left


def test_what_does_more_than_convolve_stays_compiled() -> None:
    filters = tf.Variable(tf.ones([3, 3, 1, 12]))

    @tf.function(jit_compile=True)
    def convolve(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.nn.conv2d(x, filters, 1, "SAME"))

    assert "Conv2D" not in ops_left(lambda x: convolve(x), settled())


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"data_format": "NCHW"}, tf.float32),
        ({"padding": [[0, 0], [2, 0], [1, 1], [0, 0]]}, tf.float32),
        ({}, tf.float64),
        ({}, tf.float16),
    ],
    ids=["channels first", "explicit padding", "float64", "float16"],
)
def test_a_convolution_that_was_not_tried_stays_compiled(
    options: dict[str, Any], dtype: tf.DType
) -> None:
    channels = 9 if "data_format" in options else 12

    @tf.function(jit_compile=True)
    def convolve(x: tf.Tensor) -> tf.Tensor:
        given = {"strides": 1, "padding": "SAME", **options}
        return tf.nn.conv2d(x, tf.ones([3, 3, 1, channels], dtype), **given)

    assert "Conv2D" not in ops_left(lambda x: convolve(tf.cast(x, dtype)), settled())


def test_what_the_user_keeps_stays_as_it_is() -> None:
    made = trained()

    def kept(x: tf.Tensor) -> Any:
        with amp.keep_float32():
            return made(x)

    with amp.mixed_precision_scope(dtype="bfloat16"):
        module, _ = traced(kept, spec(*SHAPE))
    opened = open_lone_convolutions(module, onednn=True, differentiable=False)
    assert "Conv2D" not in inline(opened).main.ops
    result = rewrite(module, settled())
    assert "left in float32" in str(result.report)


def test_a_function_with_an_attribute_of_its_own_stays_apart() -> None:
    """It would not be inlined, and be a function that nobody has planned."""
    convolve = tf.function(
        lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"),
        jit_compile=True,
        experimental_attributes={"api_implements": "convolution"},
    )
    left = ops_left(lambda x: convolve(x, tf.ones([3, 3, 1, 12])), settled())
    assert "Conv2D" not in left
    module, _ = traced(lambda x: convolve(x, tf.ones([3, 3, 1, 12])), spec(*SHAPE))
    assert any(use.xla for use in rewrite(module, settled()).low)


def test_a_session_graph_keeps_its_calls() -> None:
    """A session may fetch one; its part that is rewritten calls the same function."""
    convolve = tf.function(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), jit_compile=True)

    def build() -> None:
        x = v1.placeholder(tf.float32, SHAPE)
        w = v1.placeholder(tf.float32, [3, 3, 1, 12])
        y = tf.matmul(convolve(x, w), tf.ones([4, 9, 12, 5]))
        tf.gradients(y, [x, w])

    result = rewritten(graph_def(build)).graph
    (call, *_) = (n for n in result.node if n.op.endswith("PartitionedCall"))
    assert call.attr["_XlaMustCompile"].b


def test_the_time_of_xla_is_spared_and_the_price_is_of_few_channels() -> None:
    def loads(fn: Callable[..., Any]) -> Any:
        with amp.mixed_precision_scope(dtype="bfloat16"):  # in which shapes are kept
            module, _ = traced(fn, spec(*SHAPE))
        (one,) = prepare(module, settled()).priced.uses.values()
        found = one.use_analysis.found.typed
        works = {name: load.work for name, load in one.loads.own.items()}
        kernels = {works[n] for n, view in found.items() if view.node.op in GROUPS}
        return kernels, one.spared, loads_of(one.use_analysis).spared

    kernels, seconds, spared = loads(trained())
    assert kernels == {"depthwise"}
    assert len(spared) == len(GROUPS)
    assert seconds > 0
    plain = step(lambda x: tf.nn.conv2d(x, FILTERS, 1, "SAME"), [])
    kernels, seconds, spared = loads(plain)
    assert "depthwise" not in kernels
    assert not spared
    assert seconds == 0


def test_the_function_itself_stays_as_it_was() -> None:
    module, _ = traced(trained(), spec(*SHAPE))
    before = {n: (g.flags, g.attributes) for n, g in module.functions.items()}
    result = rewrite(module, settled(deny=("Conv2D",))).graph
    assert all(
        before[name] == (graph.flags, graph.attributes)
        for name, graph in result.functions.items()
        if name in before
    )
    marked = [n for n in result.main.nodes.values() if n.flag(ir.ALONE)]
    assert {node.op for node in marked} == GROUPS


native = pytest.mark.skipif(
    "bfloat16" not in hardware.device().native, reason="oneDNN may be off"
)


@native
@pytest.mark.kernels
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("groups", [12, 3])
def test_kernels_give_what_xla_gives(groups: int, strides: int) -> None:
    function = tf.function(trained(groups=groups, strides=strides))
    want = function(X)
    # In float32, sums of 9 * 9 * 4 products at most are added up in another order, off
    # by the root of as many units. In 16 bits each product has two operands that are
    # rounded, and a result; of a gradient one operand is that of such a product.
    for policy, limit in (
        (amp.Policy(dtype="bfloat16", deny=tuple(GROUPS), trial=False), 18 * 2**-24),
        (amp.Policy(dtype="bfloat16", assignment="all", trial=False), 6 * 2**-9),
    ):
        with amp.mixed_precision_scope(policy):
            got = function(X)
        for one, other in zip(got, want, strict=True):
            apart = np.linalg.norm(one - other) / np.linalg.norm(other)
            assert apart < limit
    assert any("rewritten" in str(report) for report in amp.reports())
