"""In the scope of a forward accumulator gradients are not scaled, and marked."""

import pytest
import tensorflow as tf

import amp
from amp.integration import active
from amp.loss_scaling import NoLossScale


@pytest.fixture
def weights():
    return tf.Variable(tf.random.stateless_normal([16, 4], [1, 2]) * 0.3, name="w")


def in_float16():
    return amp.mixed_precision_scope(dtype="float16", emulate=True, min_gain=0.0)


def gradient(w):
    x = tf.random.stateless_normal([8, 16], [3, 4])
    with tf.GradientTape() as tape:
        loss = 4 * tf.reduce_mean(tf.tanh(x @ w) ** 2)
    return tape.gradient(loss, w)


def product(take, w):
    """The Hessian by a vector of ones, by the tangent of a gradient."""
    with tf.autodiff.ForwardAccumulator(w, tf.ones_like(w)) as forward:
        found = take(w)
    return forward.jvp(found)


@pytest.mark.parametrize("inside", [True, False])
def test_a_hessian_vector_product_that_scaled_would_overflow_is_finite(weights, inside):
    # Entries of up to 6 times a first scale of 32768 are over float16's 65504.
    exact = product(gradient, weights)
    # Of a variable that is an argument TensorFlow takes no tangent through a call.
    take = tf.function(lambda: gradient(weights))
    whole = tf.function(lambda: product(gradient, weights))
    for _ in range(3):
        with in_float16():
            if inside:
                found = whole()
            else:
                take()  # traced, scaled, outside of an accumulator
                found = product(lambda _: take(), weights)
    # Each of the four products in a row rounds its operands by at most 2^-11, and
    # values in between are rounded once each; 2^-6 leaves room for cancellation.
    assert tf.norm(found - exact) <= 2.0**-6 * tf.norm(exact)


def test_scaling_is_off_in_the_scope_of_an_accumulator_only(weights):
    with in_float16():
        rule = active.active_loss_scale()
        with (
            tf.autodiff.ForwardAccumulator(weights, tf.ones_like(weights)),
            tf.autodiff.ForwardAccumulator(weights, tf.ones_like(weights)),
        ):
            assert active.active_loss_scale() == NoLossScale()
        assert active.active_loss_scale() == rule != NoLossScale()


def test_an_error_in_the_scope_ends_it(weights):
    with in_float16():
        rule = active.active_loss_scale()
        with (
            pytest.raises(RuntimeError, match="of the program"),
            tf.autodiff.ForwardAccumulator(weights, tf.ones_like(weights)),
        ):
            raise RuntimeError("of the program")
        assert active.active_loss_scale() == rule


def test_that_gradients_are_not_scaled_is_said_once(weights, caplog):
    with in_float16():
        for _ in range(2):
            product(gradient, weights)
    assert caplog.text.count("losses are not scaled inside") == 1
