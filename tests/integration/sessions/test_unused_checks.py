"""A run of a session checks the gradients that it uses, and no others.

So gradients may be fed, and so may what they are computed from, as in float32.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.sessions import session_hooks, unused_checks
from amp.loss_scaling import DynamicLossScale, group

v1 = tf.compat.v1
RULE = DynamicLossScale(initial=8.0, growth_interval=1000)
POLICY = amp.Policy(dtype="float16", emulate=True, loss_scale=RULE, strict=True)
ONE = {"w": np.ones([8, 8], np.float32), "v": np.ones([8, 3], np.float32)}
X = np.ones([2, 8], np.float32)
HUGE = np.full([2, 8], 3e38, np.float32)


class Step:
    """A step with two products, whose gradients are of one call."""

    def __init__(self) -> None:
        self.x = v1.placeholder(tf.float32, [None, 8], name="x")
        given = {name: v1.constant_initializer(value) for name, value in ONE.items()}
        self.w = v1.get_variable("w", [8, 8], initializer=given["w"])
        self.v = v1.get_variable("v", [8, 3], initializer=given["v"])
        self.h = tf.matmul(self.x, self.w)
        loss = tf.reduce_mean(tf.matmul(self.h, self.v))
        descent = v1.train.GradientDescentOptimizer(0.5)
        pairs = descent.compute_gradients(loss, [self.w, self.v])
        self.grads = [grad for grad, _ in pairs]
        self.train = descent.apply_gradients(pairs)
        # The loss is linear, so that the second product's gradient needs no more
        # than the first one's result.
        self.clipped, _ = tf.clip_by_global_norm(self.grads, 1e9)
        self.clip_train = descent.apply_gradients(
            list(zip(self.clipped, (self.w, self.v), strict=True))
        )


def told(session: Any) -> list[float]:
    """The loss scale, and how many updates were skipped; none before the first step."""
    (scaler,) = group.of_graph(session.graph)
    try:
        return session.run([scaler.scale, scaler.skipped_steps])
    except tf.errors.FailedPreconditionError:
        return []


@pytest.fixture(name="step")
def _step() -> Any:
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        yield Step()


@pytest.fixture(name="session")
def _session(step: Step) -> Any:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        yield session


def fed(tensors: list[Any]) -> dict[Any, Any]:
    return {t: np.ones(t.shape, np.float32) for t in tensors}


@pytest.mark.parametrize("which", ["grads", "clipped"])
def test_gradients_that_are_fed_need_no_batch(step, session, which):
    train = {"grads": step.train, "clipped": step.clip_train}[which]
    session.run(train, fed(getattr(step, which)))
    w, v = session.run([step.w, step.v])
    np.testing.assert_array_equal(w, ONE["w"] - 0.5)
    np.testing.assert_array_equal(v, ONE["v"] - 0.5)


@pytest.mark.parametrize("which", ["grads", "clipped"])
def test_an_overflow_of_gradients_that_are_not_used_stops_no_update(
    step, session, which
):
    train = {"grads": step.train, "clipped": step.clip_train}[which]
    session.run(train, {**fed(getattr(step, which)), step.x: HUGE})
    np.testing.assert_array_equal(session.run(step.w), ONE["w"] - 0.5)
    assert told(session) == []


def test_rows_of_a_gradient_may_be_fed():
    """IndexedSlices are fed with their shape, a constant."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        ids = v1.placeholder(tf.int32, [None])
        start = np.ones([4, 8], np.float32)
        table = v1.get_variable("table", initializer=start)
        rows = tf.nn.embedding_lookup(table, ids)
        descent = v1.train.GradientDescentOptimizer(1.0)
        pairs = descent.compute_gradients(tf.reduce_mean(rows @ tf.ones([8, 2])))
        train = descent.apply_gradients(pairs)
        (grad, _), *_ = pairs
        fed_rows = {grad.values: start[:1], grad.indices: [2]}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {**fed_rows, grad.dense_shape: [4, 8]})
            start[2] = 0.0
            np.testing.assert_array_equal(session.run(table), start)


def test_an_overflow_of_a_gradient_that_is_used_stops_the_update(step, session):
    """The planted fault of the tests above: with one gradient fed, the other counts."""
    session.run(step.train, {**fed(step.grads[:1]), step.x: HUGE})
    np.testing.assert_array_equal(session.run(step.w), ONE["w"])
    assert told(session) == [4.0, 1]


def test_one_gradient_is_computed_from_an_activation_that_is_fed(step, session):
    (grad,) = session.run([step.grads[1]], {step.h: np.ones([2, 8], np.float32)})
    np.testing.assert_allclose(grad, np.full([8, 3], 1 / 3), rtol=2**-10)


def test_one_gradient_is_finite_whatever_the_others_are(step, session):
    """The other's overflow would make it 0, which is what a skipped step has."""
    feed = {step.x: HUGE, step.h: np.ones([2, 8], np.float32)}
    (grad,) = session.run([step.grads[1]], feed)
    assert grad.all()
    both = session.run(step.grads, feed)
    assert not both[1].any()


def test_runs_that_use_every_gradient_are_fed_nothing_besides(step):
    feeds = {step.x.ref()}
    for targets, fetches in (
        ([step.train], []),
        ([], step.grads),
        ([step.w.initializer], [step.h]),
    ):
        graph = v1.get_default_graph()
        assert not unused_checks.answers(graph, targets, fetches, feeds)
    assert not unused_checks.answers(graph, [step.train], [], set())


def test_flags_inside_a_loop_of_tensorflow_1_are_not_fed():
    """TensorFlow cannot feed what a loop computes: such runs stay as they were."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        v1.disable_control_flow_v2()
        try:
            x = v1.placeholder(tf.float32, [2, 4])
            w, v = tf.ones([4, 4]), tf.ones([4, 4])

            def body(count, total):
                loss = tf.reduce_sum(x @ w @ v)
                grads = tf.gradients(loss, [w, v])
                return count + 1, total + grads[0]

            out = tf.while_loop(lambda count, _: count < 3, body, (0, tf.zeros([4, 4])))
        finally:
            v1.enable_control_flow_v2()
        with v1.Session() as session:
            count, total = session.run(out, {x: np.ones([2, 4], np.float32)})
    assert count == 3
    np.testing.assert_array_equal(total, np.full([4, 4], 24.0))


def test_a_graph_that_is_fed_goes_with_its_last_user():
    """What is known of a graph's runs has the graph's tensors in it."""

    def trained() -> weakref.ref[Any]:
        with tf.Graph().as_default() as graph, amp.mixed_precision_scope(POLICY):
            step = Step()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(step.train, {step.x: X})
                session.run(step.train, fed(step.grads))
        return weakref.ref(graph)

    graph = trained()
    gc.collect()
    assert graph() is None


def test_an_error_of_ours_fails_no_run(step, session, monkeypatch):
    def broken(*run: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(unused_checks, "answers", broken)
    monkeypatch.setattr(session_hooks.active, "is_strict", lambda: False)
    with pytest.warns(RuntimeWarning, match="does not use"):
        session.run(step.train, {step.x: X})
    assert told(session) == [8.0, 0]
