"""Loops of TensorFlow 1 that several tests build, with values that rounding keeps.

A product by `W` changes places and exponents, and all sums are short, so that bfloat16
(8 significant bits) holds every value. No test lives here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from rewriting import GraphDef, graph_def, v1

W = np.array([[0, 1, 0, 0], [0, 0, 2, 0], [1, 0, 0, 0], [0, 0, 0, 1]], np.float32)
X = np.array([[1, 2, 0, 1], [0, 1, 3, 1]], np.float32)
FEEDS = {"x": X, "given": W}
Ends = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # x, w and the end


@contextlib.contextmanager
def version_1() -> Iterator[None]:
    """Loops and branches are built as nodes, not as functions."""
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


def proto(build: Callable[[], object]) -> GraphDef:
    """The GraphDef of what `build` builds with TensorFlow 1's control flow."""
    with version_1():
        return graph_def(build)


def given() -> tuple[tf.Tensor, tf.Tensor]:
    """The operands "x" [2, 4] and "w" [4, 4], of which the latter may be 16-bit."""
    x = v1.placeholder(tf.float32, [2, 4], name="x")
    return x, tf.identity(v1.placeholder(tf.float32, [4, 4], name="given"), name="w")


def state_loop(trips: int = 3) -> Ends:
    """A state times w on every trip, of which the loop's condition sees nothing."""
    x, w = given()

    def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.nn.relu(tf.matmul(h, w, name="product"), name="relu")

    begin = [tf.constant(0), tf.reverse(x, [0])]
    _, h = tf.while_loop(lambda i, _: i < trips, body, begin, name="loop")
    return x, w, tf.matmul(h, w, name="last")


def array_loop() -> Ends:
    """The rows of an array times w, written to another array."""
    x, w = given()
    rows = v1.TensorArray(tf.float32, 4).unstack(tf.tile(x, [2, 1])[:, None])

    def body(i: tf.Tensor, out: v1.TensorArray) -> tuple[tf.Tensor, v1.TensorArray]:
        return i + 1, out.write(i, tf.nn.relu(tf.matmul(rows.read(i), w)))

    begin = [tf.constant(0), v1.TensorArray(tf.float32, 4)]
    _, out = tf.while_loop(lambda i, _: i < 4, body, begin, name="loop")
    return x, w, tf.matmul(tf.reshape(out.stack(), [4, 4]), w, name="last")


def nested_loops() -> Ends:
    """A loop in a loop; the inner one's length is that of a shape."""
    x, w = given()

    def inner(j: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return j + 1, tf.nn.relu(tf.matmul(h, w, name="product"))

    def outer(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows, begin = tf.shape(x)[0], [tf.constant(0), tf.reverse(h, [0])]
        _, h = tf.while_loop(lambda j, _: j < rows, inner, begin, name="inner")
        return i + 1, h

    begin = [tf.constant(0), tf.reverse(x, [0])]
    _, h = tf.while_loop(lambda i, _: i < 3, outer, begin, name="outer")
    return x, w, tf.matmul(h / 4, w, name="last")


def branches_in_a_loop() -> Ends:
    """A product on every other trip, and a branch after the loop."""
    x, w = given()

    def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        even = tf.equal(i % 2, 0)
        return i + 1, tf.cond(
            even, lambda: tf.matmul(h, w, name="product"), lambda: tf.reverse(h, [0])
        )

    begin = [tf.constant(0), tf.reverse(x, [0])]
    _, h = tf.while_loop(lambda i, _: i < 3, body, begin, name="loop")
    flag = tf.reduce_sum(x) > 0
    chosen = tf.cond(flag, lambda: tf.matmul(h, w, name="taken"), lambda: h)
    return x, w, tf.matmul(chosen, w, name="last")


LOOPS = (state_loop, array_loop, nested_loops, branches_in_a_loop)
ENDS = ("last", "dx", "dw")


def with_gradients(loop: Callable[[], Ends]) -> GraphDef:
    """The graph of one of `LOOPS` and its gradients, with the results `ENDS`."""

    def build() -> None:
        x, w, last = loop()
        for name, source in (("dx", x), ("dw", w)):
            tf.identity(tf.gradients(last, source)[0], name=name)

    return proto(build)
