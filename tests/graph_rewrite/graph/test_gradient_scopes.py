"""`depth` tells gradients by the scopes that TensorFlow builds them in."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, v1

from amp.graph_rewrite.graph.gradient_scopes import depth


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dense/MatMul", 0),
        ("my_gradients/MatMul", 0),
        ("gradients", 0),  # a node of that name
        ("gradients/dense/MatMul_grad/MatMul", 1),
        ("train/gradients_1/Mul", 1),
        ("gradient_tape/dense/MatMul/MatMul_1", 1),
        ("gradient_tape/gradient_tape/dense/mul", 2),
        ("gradients_1/gradients/Mul_grad/Mul", 2),
        # The gradient of a function, built with `tf.gradients`, that a tape calls.
        ("gradient_tape/PartitionedCall/gradients/Mul_grad/Mul", 1),
    ],
)
def test_depth_is_the_order_of_differentiation(name: str, expected: int) -> None:
    assert depth(name) == expected


def test_tensorflow_builds_gradients_in_these_scopes() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4], name="x")
        (slope,) = tf.gradients(tf.sin(x), x)
        tf.gradients(tf.square(slope), x)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.tan(x)
            slope = inner.gradient(y, x)
        outer.gradient(slope, x)

    orders = {node.op: set() for node in graph_def(build).node}
    for node in graph_def(build).node:
        orders[node.op].add(depth(node.name))
    assert orders["Sin"] == {0, 2}  # the second is the derivative of a cosine
    assert orders["Cos"] == {1}
    assert orders["Tan"] == {0}
    assert max(map(max, orders.values())) == 2
