"""What a loop computes of itself by products, with nothing between that bounds it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import tensorflow as tf
from between_layers import WIDTH, rules_of
from frames import version_1
from rewriting import graph_def, rewritten, rules, settled, spec, traced, v1

from amp.graph_rewrite.rewrite import rewrite

SQUARE = spec(WIDTH, WIDTH)
Trip = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def filtered(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """A covariance, of which a product each is multiplied from both sides."""
    half = tf.matmul(state, a, transpose_b=True, name="half")
    return 0.9 * tf.transpose(tf.matmul(a, half, name="next")) + tf.eye(WIDTH)


def descended(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """A regression by gradients, written out."""
    left = tf.matmul(a, state, name="half") - tf.ones([WIDTH, WIDTH])
    return state - 0.1 * tf.matmul(a, left, transpose_a=True, name="next")


def activated(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    half = tf.nn.bias_add(tf.matmul(state, a, name="half"), tf.ones([WIDTH]))
    return tf.tanh(half + tf.matmul(a, a, name="next"))


def gated(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    gate = tf.sigmoid(tf.matmul(state, a, name="half"))
    return gate * state + tf.matmul(a, a, name="next")


def multiplied(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """By one product a trip: what is rounded is as any other product is."""
    return tf.matmul(state, a, name="half") + tf.matmul(state, a, name="next")


def added(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    half = tf.matmul(a, a, name="half")
    return state + tf.matmul(half, a, name="next")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("trip", "held"),
    [
        (filtered, True),
        (descended, True),
        (activated, False),
        (gated, False),
        (added, False),
        (multiplied, False),
    ],
)
def test_products_of_what_a_loop_made_by_them_are_float32(
    trip: Trip, held: bool, version: int
) -> None:
    def fn(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, trip(x, a)

        with version_1() if version == 1 else contextlib.nullcontext():
            return v1.while_loop(lambda i, _: i < 3, body, [0, state])[1]

    found = rules_of(fn, SQUARE, SQUARE)
    assert {found["half"], found["next"]} == {"recurrence" if held else "compute"}


def test_variables_of_a_loop_that_are_made_of_each_other_are_one() -> None:
    def fn(one: tf.Tensor, other: tf.Tensor, a: tf.Tensor) -> list[tf.Tensor]:
        def body(
            i: tf.Tensor, one: tf.Tensor, other: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            half = tf.matmul(a, other, name="crossed")
            return i + 1, tf.matmul(half, a), one

        return tf.while_loop(lambda i, *_: i < 3, body, [0, one, other])[1:]

    assert rules_of(fn, SQUARE, SQUARE, SQUARE)["crossed"] == "recurrence"


def test_gradients_through_the_trips_of_a_recurrent_network_are_16_bit() -> None:
    """The slope of the activation is a factor of each trip."""

    def fn(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.tanh(tf.matmul(x, a))

        last = tf.while_loop(lambda i, _: i < 3, body, [0, state])[1]
        return tf.gradients(tf.reduce_sum(tf.matmul(last, a) ** 2), a)[0]

    module, _ = traced(fn, SQUARE, SQUARE)
    decisions = rewrite(module, settled()).report.decisions
    products = {d.node: d.rule for d in decisions if d.op == "MatMul"}
    assert len(products) >= 6
    assert set(products.values()) == {"compute"}


def test_layers_that_share_a_weight_are_no_loop() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [WIDTH, WIDTH])
        for _ in range(3):
            x = tf.matmul(x, tf.ones([WIDTH, WIDTH]))

    found = rules(rewritten(graph_def(build)).report)
    assert "recurrence" not in found.values()
