"""`LossScaleHook` in a session: readings, and a job that is as it was without it."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import session as session_lib

import amp
from amp.callbacks import session_hook
from amp.integration.install import install
from amp.integration.observing import step_variants

v1 = tf.compat.v1
POLICY = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}


@pytest.fixture
def trained(tmp_path):
    install()

    def train(factors, *hooks, more=lambda w: ()):
        with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
            w = v1.get_variable("w", initializer=np.ones([4, 3], np.float32))
            factor = v1.placeholder(tf.float32, [], "factor")
            hidden = tf.matmul(tf.ones([2, 4]), w, name="hidden")
            loss = tf.reduce_mean(tf.multiply(hidden, factor, "planted"))
            update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            fetched = more(w)
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for value in factors:
                    session.run(update, {factor: value})
                for each in fetched:
                    session.run(each)
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


class Own:
    """A type that TensorFlow is told how to fetch."""

    def __init__(self, tensor):
        self.tensor = tensor


def fetches_of(kind, w):
    if kind == "sparse":
        return tf.SparseTensor([[0, 1]], [2.0], [4, 3])
    if kind == "slices":
        return {"rows": [tf.IndexedSlices(w[:1], tf.constant([0]))]}
    if kind == "own":
        return Own(w[0])
    return {"name": "w", 1: w}  # keys that cannot be put in an order


@pytest.mark.swallows  # what TensorFlow says of a type that is not its own
@pytest.mark.parametrize("kind", ["sparse", "slices", "own", "named"])
def test_a_job_may_fetch_whatever_a_session_takes(trained, monkeypatch, kind):
    known = session_lib._REGISTERED_EXPANSIONS
    monkeypatch.setattr(session_lib, "_REGISTERED_EXPANSIONS", list(known))
    session_lib.register_session_run_conversion_functions(
        Own, lambda own: ([own.tensor], lambda values: values[0])
    )
    hook = amp.callbacks.LossScaleHook(every=1)
    trained([1.0], hook, more=lambda w: [fetches_of(kind, w)])


def test_each_scaler_is_read_where_steps_take_turns(capsys):
    """As in a GAN: no run takes the gradients of both."""
    install()
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        updates = []
        for name in ["a", "b"]:
            w = v1.get_variable(name, initializer=np.ones([4, 3], np.float32))
            loss = tf.reduce_mean(tf.matmul(tf.ones([2, 4]), w))
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            updates.append(optimizer.minimize(loss, var_list=[w]))
        hook = amp.callbacks.LossScaleHook(every=4)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(5):
                for update in updates:
                    session.run(update)
    said = re.findall(r"step (\d+): loss scale \d+ \((\w)\)", capsys.readouterr().err)
    assert said == [(str(n), "ab"[n % 2]) for n in (0, 1, 4, 5, 8, 9)]


def test_a_graph_is_walked_once_for_each_kind_of_run(trained, monkeypatch):
    """A session that never trains asks at each run whether it does."""
    walked = []

    def executed(roots):
        walked.append(tuple(each.name for each in roots))
        return step_variants.executed(roots)

    seen = types.SimpleNamespace(**vars(step_variants) | {"executed": executed})
    monkeypatch.setattr(session_hook, "step_variants", seen)
    hook = amp.callbacks.LossScaleHook(every=1)
    trained([], hook, more=lambda w: [w[0]] * 3 + [w[1]] * 3)
    assert len(walked) == len(set(walked)) == 3
