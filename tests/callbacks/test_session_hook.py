"""`LossScaleHook` in a session: readings, and a job that is as it was without it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install

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


def test_a_hook_that_is_used_again_does_not_count_from_the_graph_before(
    trained, capsys
):
    hook = amp.callbacks.LossScaleHook(every=1)
    trained([np.inf] * 3, hook)
    # a reading may come before the update of its own step
    said = re.findall(r"not finite in at least (\d) of (\d)", capsys.readouterr().err)
    assert said
    assert all(1 <= int(some) <= int(calls) <= 3 for some, calls in said)
    trained([np.inf], hook)
    assert "of -" not in capsys.readouterr().err


def test_a_run_without_gradients_is_left_alone(trained):
    """`trained` ends with a run that reads a variable, and feeds nothing."""
    hook = amp.callbacks.LossScaleHook(every=1)
    np.testing.assert_array_equal(trained([1.0], hook), trained([1.0]))
