"""`roots`: what arguments do not tell, if it matters; `telling` returns its shapes."""

from __future__ import annotations

import tensorflow as tf
from rewriting import graph_def, module_of, v1
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.normalize import size_roots
from amp.graph_rewrite.normalize.sizes import sized
from amp.integration.runtime import definitions, shape_inference

WIDTH = 8


def roots(module: ir.Module) -> tuple[ir.Edge, ...]:
    return size_roots.roots(sized(module, shape_inference.at_call(())))


def test_roots_are_what_a_product_depends_on() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4, WIDTH], name="x")
        where = tf.where(x[:, 0] > 0.0, name="where")
        rows = tf.gather_nd(x, where, name="rows")
        tf.matmul(tf.tanh(rows), tf.ones([WIDTH, WIDTH]), name="product")
        tf.reduce_sum(tf.unique(x[0], name="only_summed").y)

    assert roots(module_of(graph_def(build))) == (("where", 0),)


def test_what_the_trace_knows_has_no_roots() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4, WIDTH], name="x")
        tf.matmul(x, tf.ones([WIDTH, WIDTH]), name="product")

    assert roots(module_of(graph_def(build))) == ()


def test_a_telling_function_returns_the_shapes_after_its_results() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def fn(x: tf.Tensor) -> tf.Tensor:
        rows = tf.boolean_mask(x, x[:, 0] > 0.0)
        return tf.matmul(rows, tf.ones([WIDTH, 3]))

    concrete, context = fn.get_concrete_function(), context_lib.context()
    module = definitions.read(context, concrete.name)
    where = next(n.name for n in module.main.nodes.values() if n.op == "Where")
    made = size_roots.telling(module, ((where, 0),), "told")
    context.add_function_def(
        serde.write_function(made.main, op_schema.lookup_of(module))
    )
    x = tf.constant([[1.0] * WIDTH, [-1.0] * WIDTH, [2.0] * WIDTH])
    captured = [x, *concrete.captured_inputs]
    result, shape = context.call_function(b"told", captured, 2)
    context.remove_function("told")
    assert result.shape == (2, 3)
    assert shape.numpy().tolist() == [2, 1]
