"""A job under `tf.debugging.enable_check_numerics` runs in mixed precision as well."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, state

pytestmark = pytest.mark.kernels

FLOAT16 = {
    "dtype": "float16",
    "emulate": True,
    "assignment": "all",
    "strict": True,
}
X = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def checked():
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


def fit(**policy):
    """The losses of a model whose gradients, times 2**15, overflow at once."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    with amp.mixed_precision_scope(**FLOAT16, **policy):
        done = model.fit(X, 100 * X[:, :1], batch_size=4, epochs=3, verbose=0)
    return done.history["loss"]


def test_a_job_that_is_checked_trains_and_one_line_says_what_is_off(checked, caplog):
    with caplog.at_level(logging.WARNING, "amp"):
        losses = fit()
        fit()
    assert losses[2] < losses[1] < losses[0]
    assert state.skipped_steps() == 0
    assert not state.current().scalers
    (said,) = [r.getMessage() for r in caplog.records if r.name == "amp"]
    assert said.startswith("amp: losses are not scaled while ")
    assert "loss_scale=" in said


def test_an_infinity_of_the_jobs_own_is_still_found(checked):
    w = tf.Variable([0.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sqrt(w))  # its gradient at 0 is infinite
        return tape.gradient(loss, w)

    with amp.mixed_precision_scope(**FLOAT16), pytest.raises(Exception, match="Inf"):
        step()


def test_a_scale_that_the_user_fixed_is_the_users(checked):
    w = tf.Variable([1.0])
    with amp.mixed_precision_scope(**FLOAT16, loss_scale=ConstantLossScale(8.0)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        tape.gradient(loss, w)
    assert [s.settings for s in state.current().scalers] == [ConstantLossScale(8.0)]


def test_without_the_check_dynamic_scaling_is_as_ever():
    fit()
    assert state.skipped_steps() > 0
    (scaler,) = state.current().scalers
    assert isinstance(scaler.settings, DynamicLossScale)
