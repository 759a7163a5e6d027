"""`eager_backward`: what Python differentiates eagerly is as without loss scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from custom_gradients import reading_rows

import amp
from amp.loss_scaling import eager_backward

SCALED = amp.Policy(dtype="float16", emulate=True, loss_scale="dynamic")


def gradient(loss: Any, source: Any) -> np.ndarray:
    with amp.mixed_precision_scope(SCALED), tf.GradientTape() as tape:
        value = loss()
        found = tape.gradient(value, source)
    return tf.convert_to_tensor(found).numpy()


@tf.custom_gradient
def clipped(x):
    return tf.identity(x), lambda grad: tf.clip_by_norm(grad, 0.5)


@tf.custom_gradient
def of_its_sign(x):
    return tf.identity(x), tf.sign


@tf.custom_gradient
def ignoring(x):
    return tf.identity(x), lambda grad: tf.fill(tf.shape(x), 3.0)


@tf.custom_gradient
def giving_a_number(x):
    return tf.identity(x), lambda grad: 3.0


@tf.custom_gradient
def doubled(x):
    return tf.identity(x), lambda grad: 2.0 * grad


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        (clipped, 2.0),
        (of_its_sign, 4.0),
        (ignoring, 12.0),
        (giving_a_number, 12.0),
        (doubled, 8.0),
    ],
)
def test_a_custom_gradient_meets_no_scale(through: Any, expected: float) -> None:
    source = tf.Variable(2.0)
    assert gradient(lambda: through(source * source), source) == expected
    assert amp.loss_scaling.scalers()[-1].value > 1


def test_nor_does_one_inside_another() -> None:
    @tf.custom_gradient
    def outer(x: tf.Tensor) -> Any:
        def backward(grad: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                again = clipped(x)
            return tape.gradient(again, x, grad)

        return tf.identity(x), backward

    source = tf.Variable(2.0)
    assert gradient(lambda: outer(source * source), source) == 2.0


def test_variables_and_rows_and_what_has_no_gradient_are_handed_on() -> None:
    weight, table = tf.Variable(3.0), tf.Variable(tf.ones([4, 2]))

    read = reading_rows(weight)

    def loss() -> tf.Tensor:
        return tf.reduce_sum(read(tf.identity(table), tf.constant([0, 2])))

    with amp.mixed_precision_scope(SCALED), tf.GradientTape() as tape:
        value = loss()
        by_table, by_weight = tape.gradient(value, [table, weight])
    rows = np.zeros([4, 2], np.float32)
    rows[[0, 2]] = 0.5
    np.testing.assert_array_equal(tf.convert_to_tensor(by_table), rows)
    assert by_weight.numpy() == 1.0


def test_a_program_that_asks_for_variables_is_still_refused_without_them() -> None:
    """TensorFlow looks at the names of the function's parameters."""
    weight = tf.Variable(3.0)

    @tf.custom_gradient
    def times(x: tf.Tensor) -> Any:
        return x * weight, lambda grad: grad

    with pytest.raises(TypeError, match="must accept keyword argument 'variables'"):
        gradient(lambda: times(tf.constant(1.0)), weight)


def test_gradients_in_16_bits_keep_the_scale() -> None:
    """They would underflow without it: 2^-20 is a float16, 2^-35 is none."""
    seen = []
    with eager_backward.passes(eager_backward.Passing(tf.constant(2.0**15), None)):
        eager_backward.without_scale(seen.append)(tf.constant(2.0**-20, tf.float16))
        eager_backward.without_scale(seen.append)(tf.constant(2.0**-20))
    assert [float(each) for each in seen] == [2.0**-20, 2.0**-35]


def stack(rows: tf.Tensor) -> tf.Tensor:
    scalar = tf.constant([], tf.int32)
    return tf.raw_ops.TensorListStack(
        input_handle=rows, element_shape=scalar, element_dtype=tf.float32
    )


def unstack(x: tf.Tensor) -> tf.Tensor:
    scalar = tf.constant([], tf.int32)
    return tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=scalar)


@tf.custom_gradient
def stacked(rows: tf.Tensor) -> Any:
    return stack(rows), unstack


@tf.custom_gradient
def unstacked(x: tf.Tensor) -> Any:
    return unstack(x), stack


@pytest.mark.parametrize(("first", "then"), [(unstacked, stack), (unstack, stacked)])
def test_lists_of_tensors_keep_the_scale(first: Any, then: Any) -> None:
    w = tf.Variable([1.0, 2.0, 3.0])
    found = gradient(lambda: tf.reduce_sum(then(first(w * 3.0)) ** 2), w)
    np.testing.assert_array_equal(found, [18.0, 36.0, 54.0])


def test_a_scale_ends_with_its_call() -> None:
    backward = eager_backward.without_scale(lambda grad: grad + 1.0)

    def interrupted() -> None:
        with eager_backward.passes(eager_backward.Passing(tf.constant(4.0), None)):
            assert float(backward(tf.constant(8.0))) == 12.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert float(backward(tf.constant(8.0))) == 9.0
