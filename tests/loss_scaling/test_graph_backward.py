"""`graph_backward`: what Python bends in a graph is as it is without loss scaling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from custom_gradients import reading_rows

import amp
from amp.graph_rewrite.graph.ir import UNSCALE
from amp.loss_scaling import DynamicLossScale

SCALED = amp.Policy(dtype="float16", emulate=True, loss_scale="dynamic", check=False)
ROWS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
Backward = Callable[..., Any]
NUMBERS = itertools.count()  # no two gradients are registered under one name

BENT: dict[str, Backward] = {
    "clipped": lambda dy: tf.clip_by_norm(dy, 0.5),
    "of its sign": tf.sign,
    "left out": tf.ones_like,
    "given": lambda dy: tf.constant(3.0, shape=[4, 2]),
}


def with_backward(backward: Backward) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def through(y: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        return tf.identity(y), backward

    return through


def stepping(backward: Backward) -> Any:
    """A function that takes the gradient of a weight, through such a backward one."""
    weight, through = tf.Variable(tf.ones([3, 2])), with_backward(backward)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(through(x @ weight) ** 2)
        return tape.gradient(loss, weight)

    return step


def in_a_function(backward: Backward) -> np.ndarray:
    found: np.ndarray = stepping(backward)(tf.constant(ROWS)).numpy()
    return found


def in_a_session(backward: Backward) -> np.ndarray:
    through = with_backward(backward)
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", initializer=np.ones([3, 2], "f"))
        loss = tf.reduce_sum(through(tf.constant(ROWS) @ weight) ** 2)
        (gradient,) = tf.gradients(loss, [weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found: np.ndarray = session.run(gradient)
            return found


def overridden(backward: Backward) -> np.ndarray:
    """In a session, by a gradient that takes the place of an operation's own."""
    name = f"test_{next(NUMBERS)}"
    tf.RegisterGradient(name)(lambda op, dy: backward(dy))
    with tf.Graph().as_default() as graph:
        weight = tf.compat.v1.get_variable("w", initializer=np.ones([3, 2], "f"))
        product = tf.constant(ROWS) @ weight
        with graph.gradient_override_map({"Identity": name}):
            through = tf.identity(product)
        (gradient,) = tf.gradients(tf.reduce_sum(through**2), [weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found: np.ndarray = session.run(gradient)
            return found


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    # Products of 3, and of 4 rows up to 1, each rounded to 2**-11 in float16.
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=2.0**-10)


@pytest.mark.parametrize("how", [in_a_function, in_a_session, overridden])
@pytest.mark.parametrize("name", BENT)
def test_what_bends_its_gradient_meets_no_scale(
    how: Callable[[Backward], np.ndarray], name: str
) -> None:
    expected = how(BENT[name])
    with amp.mixed_precision_scope(SCALED):
        assert_near(how(BENT[name]), expected)


def test_ones_for_a_variable_beside_a_gradient_meet_no_scale() -> None:
    """As TensorFlow's own `testCustomGradientWithVariables` has them."""
    weight = tf.Variable(tf.fill([3, 2], 0.125))

    @tf.custom_gradient
    def product(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        def backward(dy: tf.Tensor, variables: Any = None) -> Any:
            return tf.matmul(dy, weight, transpose_b=True), [tf.ones([3, 2])]

        return x @ weight, backward

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        return tape.gradient(y, [x, weight])

    with amp.mixed_precision_scope(SCALED):
        of_x, of_weight = step(tf.constant(ROWS))
    # A product of ones with eighths, of which float16 has all sums.
    np.testing.assert_array_equal(of_x, np.full([4, 3], 0.25))
    np.testing.assert_array_equal(of_weight, np.ones([3, 2]))


def markers(backward: Backward) -> int:
    """How many nodes of a step unscale, one of which is of the weight's gradient."""
    with amp.mixed_precision_scope(SCALED):
        graph = stepping(backward).get_concrete_function(tf.constant(ROWS)).graph
    return sum(UNSCALE in op.node_def.attr for op in graph.get_operations())


def test_of_a_linear_one_nothing_is_built_besides() -> None:
    calls: list[tf.Tensor] = []

    def doubled(dy: tf.Tensor) -> tf.Tensor:
        calls.append(dy)
        return 2.0 * dy

    assert markers(doubled) == 1
    assert len(calls) == 1
    assert markers(tf.sign) == 2


def test_one_that_reads_the_scale_is_right_as_it_is() -> None:
    def clipped(dy: tf.Tensor) -> tf.Tensor:
        scaler = amp.loss_scaling.scalers()[-1]
        return tf.clip_by_norm(dy, 0.5 * scaler.scale)

    assert markers(clipped) == 1


def test_one_with_an_effect_has_it_once() -> None:
    seen = tf.Variable(0.0)

    def counted(dy: tf.Tensor) -> tf.Tensor:
        seen.assign_add(1.0)
        return tf.sign(dy)

    with amp.mixed_precision_scope(SCALED):
        in_a_function(counted)
    assert seen.numpy() == 1.0


def test_one_in_16_bits_keeps_the_scale_that_it_needs() -> None:
    def low(dy: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.sign(tf.cast(dy, tf.float16)), tf.float32)

    assert markers(low) == 1


def test_an_overflow_does_not_end_at_a_clip() -> None:
    """A clipped infinity would be taken for a gradient."""
    weight = tf.Variable(tf.ones([3, 2]))
    optimizer = tf.keras.optimizers.SGD(1.0)
    through = with_backward(BENT["clipped"])

    @tf.function
    def step(x: tf.Tensor, factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(through(x @ weight) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    rule = DynamicLossScale(initial=2.0**10)
    policy = amp.Policy(dtype="float16", emulate=True, loss_scale=rule, check=False)
    with amp.mixed_precision_scope(policy):
        step(tf.constant(ROWS), tf.constant(np.inf))
        assert weight.numpy().tolist() == np.ones([3, 2]).tolist()
        scaler = amp.loss_scaling.scalers()[-1]
        assert (scaler.skipped_steps.numpy(), scaler.scale.numpy()) == (1, 2.0**9)
        step(tf.constant(ROWS), tf.constant(1.0))
    assert weight.numpy().tolist() != np.ones([3, 2]).tolist()


def test_variables_rows_and_what_has_no_gradient_are_handed_on() -> None:
    def found() -> list[np.ndarray]:
        table, weight = tf.Variable(tf.ones([4, 2])), tf.Variable(3.0)

        read = reading_rows(weight)

        @tf.function
        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                rows = read(tf.identity(table), tf.constant([0, 2]))
                loss = tf.reduce_sum(rows)
            return [*map(tf.convert_to_tensor, tape.gradient(loss, [table, weight]))]

        return [gradient.numpy() for gradient in step()]

    expected = found()
    with amp.mixed_precision_scope(SCALED):
        for one, other in zip(found(), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert expected[1] == 1.0


def test_one_inside_another_meets_no_scale_either() -> None:
    inner = with_backward(BENT["of its sign"])

    def outer(dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.ones_like(dy)
            tape.watch(x)
            again = tf.reduce_sum(inner(x) * dy)
        return tape.gradient(again, x)

    expected = in_a_function(outer)
    with amp.mixed_precision_scope(SCALED):
        assert_near(in_a_function(outer), expected)


def test_a_loop_of_tensorflow_1_may_be_around_it() -> None:
    def found() -> np.ndarray:
        through = with_backward(BENT["clipped"])
        with tf.Graph().as_default():
            tf.compat.v1.disable_control_flow_v2()
            try:
                weight = tf.compat.v1.get_variable(
                    "w", initializer=0.5 * np.eye(3, dtype=np.float32)
                )
                out = tf.compat.v1.while_loop(
                    lambda i, y: i < 3,
                    lambda i, y: (i + 1, through(y @ weight)),
                    [0, tf.constant(ROWS)],
                )[1]
                (gradient,) = tf.gradients(tf.reduce_sum(out**2), [weight])
            finally:
                tf.compat.v1.enable_control_flow_v2()
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                value: np.ndarray = session.run(gradient)
                return value

    expected = found()
    with amp.mixed_precision_scope(SCALED):
        assert_near(found(), expected)
