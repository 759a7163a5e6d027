"""`instance`: a key says all that an operation's time depends on, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, rewritten, v1

from amp.graph_rewrite.candidates.context import Context, type_ports
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.graph import ir

Build = Callable[[], object]


def named(build: Build, name: str = "op", **fields: Any) -> str:
    """The key of a node of a graph."""
    return key_in(module_of(graph_def(build)), name, **fields)


def key_in(module: ir.Module, name: str, **fields: Any) -> str:
    context: Context = context_of(module, **fields)
    view = type_ports(module.main, context)[name]
    return op_instance.key(module.main, view, context)


def floats(*shape: int | None) -> Any:
    return v1.placeholder(tf.float32, shape)


def product(name: str = "op", rows: int | None = 8, **flags: bool) -> Any:
    return tf.matmul(floats(rows, 16), floats(16, 16), name=name, **flags)


def test_a_key_can_be_read() -> None:
    assert named(product) == "MatMul *8x16 *16x16 | bfloat16 kernels"
    strided = named(lambda: tf.nn.conv2d(floats(2, 8, 8, 3), floats(3, 3, 3, 4), 2,
                                         "SAME", name="op"))  # fmt: skip
    assert strided == (
        "Conv2D *2x8x8x3 *3x3x3x4 padding=SAME strides=[1,2,2,1] | bfloat16 kernels"
    )


def test_the_same_op_on_the_same_shapes_has_one_key_whatever_its_name() -> None:
    assert named(lambda: product("other"), "other") == named(product)
    flags = {"grad_a": True, "name": "op"}
    same = named(lambda: tf.raw_ops.MatMul(a=floats(8, 16), b=floats(16, 16), **flags))
    assert same == named(product)


def test_what_changes_the_time_changes_the_key() -> None:
    keys = [
        named(product),
        named(lambda: product(rows=9)),
        named(lambda: product(transpose_b=True)),
        named(product, dtype="float16"),
        named(product, xla=True),
        named(lambda: tf.reduce_sum(floats(8, 16), 0, name="op")),
        named(lambda: tf.reduce_sum(floats(8, 16), 1, name="op")),
        named(lambda: tf.tanh(floats(8, 16), name="op")),
        named(lambda: tf.tanh(tf.constant([1.0], name="op"))),
    ]
    assert keys.pop() == ""  # a constant is no operation
    assert len(set(keys)) == len(keys)
    assert all(keys)


def test_a_default_need_not_be_written() -> None:
    proto = graph_def(product)
    (node,) = (node for node in proto.node if node.op == "MatMul")
    full = key_in(module_of(proto), "op")
    for name in ("transpose_a", "transpose_b", "grad_a", "grad_b"):
        node.attr.pop(name, None)
    assert key_in(module_of(proto), "op") == full


def test_an_unknown_dimension_counts_as_in_the_cost_model() -> None:
    assert named(lambda: product(rows=None)) == named(lambda: product(rows=32))


def test_a_node_keeps_its_key_when_it_has_turned() -> None:
    """Else a second rewrite would see other prices than the first."""

    def build() -> None:
        tf.tanh(product(), name="end")

    before = module_of(graph_def(build))
    after = module_of(rewritten(graph_def(build), fetches=["end"]).graph)
    assert after.main.nodes["op"].types("T") == (ir.BFLOAT16,)
    assert key_in(after, "op") == key_in(before, "op")


@pytest.mark.parametrize(
    "build",
    [
        lambda: v1.placeholder(tf.float32, None, name="op"),
        lambda: tf.reshape(product("x"), [16, 8], name="op"),  # costs nothing
        lambda: tf.tanh(v1.placeholder(tf.float32, None), name="op"),  # what rank?
        lambda: v1.placeholder_with_default(tf.ones([3]), [3], name="op"),
        lambda: tf.gather(floats(8, 4), v1.placeholder(tf.int32, [3]), name="op"),
        lambda: tf.raw_ops.Print(input=floats(3), data=[floats(3)], name="op"),
    ],
)
def test_what_cannot_be_run_alone_has_no_key(build: Build) -> None:
    assert named(build) == ""


def test_under_xla_only_products_have_times_of_their_own() -> None:
    assert named(lambda: tf.tanh(floats(3), name="op"))
    assert not named(lambda: tf.tanh(floats(3), name="op"), xla=True)
    assert named(product, xla=True)


def test_a_node_for_another_device_is_not_run_on_this_one() -> None:
    def build() -> None:
        with tf.device("/GPU:0"):
            product()

    module = module_of(graph_def(build))
    context = context_of(module)
    view = type_ports(module.main, context)["op"]
    both = dataclasses.replace(context, kinds=frozenset({"CPU", "GPU"}))
    assert op_instance.key(module.main, view, both) == ""
    # Without a GPU it runs here.
    assert op_instance.key(module.main, view, context) == named(product)


def test_integers_are_found_through_shapes() -> None:
    def build() -> None:
        x, bias = floats(4, 6, 3), floats(1, 3)
        shapes = [tf.shape(t, name=n) for t, n in ((x, "x"), (bias, "bias"))]
        tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1], name="axes")
        tf.identity(shapes[0], name="same")
        tf.shape_n([x, bias], name="both")
        tf.shape(floats(None, 5), name="batch")
        tf.identity(v1.placeholder(tf.int32, [2]), name="fed")

    graph = module_of(graph_def(build)).main

    def value(name: str, index: int = 0) -> Any:
        return op_instance.constant(graph, (name, index))

    assert tuple(value("same")) == (4, 6, 3)
    assert tuple(value("both", 1)) == (1, 3)
    assert tuple(value("batch")) == (32, 5)
    assert value("fed") is None
    x, bias = np.zeros([4, 6, 3]), np.zeros([1, 3])
    want = tf.raw_ops.BroadcastGradientArgs(s0=x.shape, s1=bias.shape)
    assert [list(value("axes", i)) for i in (0, 1)] == [
        w.numpy().tolist() for w in want
    ]
