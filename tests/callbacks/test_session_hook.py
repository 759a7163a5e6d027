"""`LossScaleHook` in a session: readings, and which tensor was the first to fail."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install
from amp.loss_scaling import stalls

v1 = tf.compat.v1
POLICY = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}


@pytest.fixture
def trained(tmp_path):
    install()

    def train(factors, *hooks):
        with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
            w = v1.get_variable("w", initializer=np.ones([4, 3], np.float32))
            factor = v1.placeholder(tf.float32, [], "factor")
            hidden = tf.matmul(tf.ones([2, 4]), w, name="hidden")
            loss = tf.reduce_mean(tf.multiply(hidden, factor, "planted"))
            update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for value in factors:
                    session.run(update, {factor: value})
                return session.run(w)

    return train


def test_readings_are_logged_and_written_and_the_job_is_the_same(
    trained, tmp_path, capsys
):
    factors = [1.0, np.inf, 1.0, 1.0, 0.5]
    wanted = trained(factors)
    hook = amp.callbacks.LossScaleHook(tmp_path, every=4)
    np.testing.assert_array_equal(trained(factors, hook), wanted)
    said = capsys.readouterr().err
    assert "step 0: loss scale" in said
    assert "step 4: loss scale 16384 (w); 1 updates skipped" in said
    assert "not finite in at least 1 of" in said
    assert list(tmp_path.glob("events.*"))


def test_a_stall_names_the_first_tensor_that_was_not_finite(trained, caplog):
    hook = amp.callbacks.LossScaleHook(every=1000)
    trained([np.nan] * (2 * stalls.LIMIT + 2), hook)
    (said,) = [
        r.getMessage() for r in caplog.records if "stand still" in r.msg % r.args
    ]
    assert "first tensor that was not finite is factor" in said
    assert "gradient of w was the first" in said


def test_what_leaves_float16s_range_is_not_called_the_models_fault(caplog):
    install()
    hook = amp.callbacks.LossScaleHook(every=1000)
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        x = v1.placeholder(tf.float32, [2, 4], "x")
        w = v1.get_variable("w", initializer=np.ones([4, 3], np.float32))
        v = v1.get_variable("v", initializer=np.ones([3, 3], np.float32))
        hidden = tf.matmul(x, w, name="hidden")
        loss = tf.reduce_mean(tf.matmul(hidden, v))
        update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(2 * stalls.LIMIT + 2):
                session.run(update, {x: np.full([2, 4], 1e5)})
    (said,) = [r.getMessage() for r in caplog.records if "stand still" in r.message]
    assert "first tensor that was not finite is " in said
    assert "mixed precision is not the cause" not in said
    assert "AMP_DTYPE=bfloat16" in said
