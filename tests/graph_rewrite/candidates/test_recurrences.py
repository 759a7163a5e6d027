"""What a loop computes of itself by products, with nothing between that bounds it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
import tensorflow as tf
from between_layers import WIDTH, rules_of
from frames import version_1
from rewriting import graph_def, rewritten, rules, settled, spec, traced, v1

import amp
from amp.graph_rewrite.rewrite import rewrite

SQUARE = spec(WIDTH, WIDTH)
Trip = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def filtered(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """A covariance, of which a product each is multiplied from both sides."""
    half = tf.matmul(state, a, transpose_b=True, name="half")
    return 0.9 * tf.transpose(tf.matmul(a, half, name="next")) + tf.eye(WIDTH)


def symmetric(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """The same, made symmetric by a quotient, and with its sign turned twice."""
    half = tf.matmul(state, a, transpose_b=True, name="half")
    product = -tf.matmul(a, half, name="next")
    return -(product + tf.transpose(product)) / 2.0


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


def solved(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """An iteration by one product, which adds to what it had."""
    residual = tf.eye(WIDTH) - tf.matmul(a, state, name="half")
    return state + 0.1 * residual + 0.0 * tf.matmul(a, state, name="next")


def divided(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """As factors of a positive matrix are: by quotients, and roots."""
    ratio = a / tf.matmul(a, state, name="half")
    return state * tf.sqrt(ratio / tf.matmul(state, a, name="next"))


def added(state: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    half = tf.matmul(a, a, name="half")
    return state + tf.matmul(half, a, name="next")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("trip", "held"),
    [
        (filtered, True),
        (symmetric, True),
        (descended, True),
        (solved, True),
        (divided, False),
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


@pytest.mark.parametrize(
    ("trip", "held"),
    [
        (filtered, True),
        (solved, True),
        (divided, True),
        (multiplied, True),  # there may be any number of calls
        (activated, False),
        (gated, False),
        (added, False),
    ],
)
def test_so_are_those_of_what_a_variable_keeps_from_call_to_call(
    trip: Trip, held: bool
) -> None:
    state = tf.Variable(tf.ones([WIDTH, WIDTH]))
    found = rules_of(lambda a: state.assign(trip(state, a)), SQUARE)
    assert {found["half"], found["next"]} == {"recurrence" if held else "compute"}


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_what_takes_a_gradient_is_trained_and_its_gradients_are_compared(
    looped: bool, marked: bool
) -> None:
    """Also where it was traced before mixed precision was on."""
    state, b = (tf.Variable(tf.ones([WIDTH, WIDTH])) for _ in range(2))

    def fn(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            now = state + 0.1 * tf.matmul(state, b, name="half")
            if looped:
                now = tf.while_loop(
                    lambda i, _: i < 3,
                    lambda i, y: (i + 1, y + 0.1 * tf.matmul(y, b)),
                    [0, now],
                )[1]
            loss = tf.reduce_sum(tf.matmul(x, now, name="next") ** 2)
        state.assign(now)
        b.assign_sub(tape.gradient(loss, b))

    on = amp.mixed_precision_scope(dtype="bfloat16")
    with on if marked else contextlib.nullcontext():
        found = rules_of(fn, SQUARE)
    assert "recurrence" not in found.values()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_products_of_a_trip_may_be_in_a_branch(
    first: bool, version: int
) -> None:
    """Where a gradient is taken, too; one alone is as any product is."""

    def branched(state: tf.Tensor, a: tf.Tensor, *, chosen: tf.Tensor) -> tf.Tensor:
        def multiplied(x: tf.Tensor) -> tf.Tensor:
            return tf.cond(
                chosen, lambda: tf.matmul(a, x, name="branch"), lambda: tf.transpose(x)
            )

        if first:
            return tf.matmul(multiplied(state), a, name="beside")
        return multiplied(tf.matmul(state, a, name="beside"))

    def fn(state: tf.Tensor, a: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, branched(x, a, chosen=chosen)

        with version_1() if version == 1 else contextlib.nullcontext():
            last = v1.while_loop(lambda i, _: i < 3, body, [0, state])[1]
        return tf.gradients(tf.reduce_sum(tf.matmul(last, a) ** 2), a)[0]

    module, _ = traced(fn, SQUARE, SQUARE, spec(dtype=tf.bool))
    decisions = rewrite(module, settled()).report.decisions
    found = {re.split("/|::", d.node)[-1]: d.rule for d in decisions}
    assert {found["branch"], found["beside"]} == {"recurrence"}


def test_a_figure_that_is_summed_up_is_no_product_of_itself() -> None:
    """A metric, and an average of what a layer gives."""
    total, average = tf.Variable(0.0), tf.Variable(tf.ones([WIDTH, WIDTH]))
    weights = tf.Variable(tf.ones([WIDTH, WIDTH]))

    def fn(x: tf.Tensor) -> None:
        out = tf.matmul(x, weights, name="product")
        total.assign_add(tf.reduce_sum(out))
        average.assign(0.9 * average + 0.1 * out)

    assert rules_of(fn, SQUARE)["product"] == "compute"


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
