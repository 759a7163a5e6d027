"""An optimizer of one's own leaves out what Keras' would, wherever it runs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.errors import LossScaleError
from amp.integration.distributed import replicas
from amp.loss_scaling import DynamicLossScale
from amp.loss_scaling.process import SCALING

pytestmark = pytest.mark.kernels

ls = amp.loss_scaling
keras = pytest.importorskip("keras")
v1 = tf.compat.v1
RULE = DynamicLossScale(initial=8.0, growth_interval=2)
TYPES = pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
HOW = pytest.mark.parametrize("how", [tf.function, lambda f: f], ids=["graph", "eager"])


@pytest.fixture(autouse=True)
def _process():
    SCALING.reset()
    yield
    SCALING.reset()


def scope(dtype, rule="auto"):
    if dtype is None:
        return contextlib.nullcontext()
    return amp.mixed_precision_scope(
        dtype=dtype, loss_scale=rule, assignment="all", emulate=True, strict=True
    )


class Momentum:
    """An optimizer that knows nothing of Keras; AutoGraph converts its branch."""

    def __init__(self, variables):
        self.variables = variables
        self.moments = [tf.Variable(tf.zeros_like(v)) for v in variables]
        self.steps = tf.Variable(0)

    def apply(self, grads):
        self.steps.assign_add(1)
        for v, m, grad in zip(self.variables, self.moments, grads, strict=True):
            if tf.reduce_max(grad) > 1e6:
                grad = tf.zeros_like(grad)
            m.assign(0.5 * m + grad)
            v.assign_sub(0.125 * m)

    def bits(self):
        held = (*self.variables, *self.moments, self.steps)
        return [np.asarray(v).tobytes() for v in held]


def trained(how, dtype, change=lambda grad: grad):
    """Three steps, of which the second overflows: which ones ran, and the optimizer."""
    w = tf.Variable(tf.ones([4, 2]), name="w")
    own = Momentum([w])

    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), w)) * factor
        grads = [change(tape.gradient(loss, w))]
        return ls.apply_if_finite(lambda: own.apply(grads), grads, [w])

    step, ran = how(step), []
    with scope(dtype, RULE if dtype == "float16" else "auto"):
        for factor in (1.0, np.inf, 1.0):
            before = own.bits()
            ran.append(bool(step(tf.constant(factor, tf.float32))))
            assert ran[-1] == (own.bits() != before)
    return ran, own


@TYPES
@HOW
def test_an_overflow_leaves_every_bit_as_it_was(dtype, how):
    ran, own = trained(how, dtype)
    assert ran == [True, False, True]
    assert int(own.steps) == 2
    np.testing.assert_array_equal(own.variables[0], np.full([4, 2], 0.6875))


@HOW
def test_a_skipped_update_is_counted_and_the_scale_backs_off(how):
    _, own = trained(how, "float16")
    assert int(own.steps) == 2
    (scaler,) = ls.scalers()
    assert scaler.state_dict() == {
        "scale": 4.0,
        "good_steps": 1,
        "bad_steps": 0,
        "skipped_steps": 1,
    }


@HOW
def test_gradients_changed_on_the_way_count_too(how):
    ran, _ = trained(how, "float16", lambda grad: 2.0 * tf.clip_by_norm(grad, 9.0))
    assert ran == [True, False, True]


@HOW
@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_gradients_may_be_variables_that_they_were_summed_in(kind, how):
    w = tf.Variable(tf.ones([4, 2]), name="w")
    own, total = Momentum([w]), kind(np.zeros([4, 2], np.float32))

    @tf.function
    def take(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), w)) * factor
        return tape.gradient(loss, w)

    def update():
        return ls.apply_if_finite(lambda: own.apply([total * 1.0]), [total], [w])

    update, ran = how(update), []
    with scope("float16", RULE):
        for factor in (1.0, np.inf, 1.0):
            total.assign(take(tf.constant(1.0)) + take(tf.constant(factor, tf.float32)))
            before = own.bits()
            ran.append(bool(update()))
            assert ran[-1] == (own.bits() != before)
    assert ran == [True, False, True]


@HOW
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_that_the_program_made_infinite_skips_and_leaves_the_scale(
    dtype, how
):
    """The scaled gradient was finite, so the scale goes on; the update may not."""
    w = tf.Variable(tf.ones([2]), name="w")
    own = Momentum([w])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        grads = [tape.gradient(loss, w) / tf.zeros([2])]
        return ls.apply_if_finite(lambda: own.apply(grads), grads, [w])

    with scope(dtype, RULE if dtype == "float16" else "auto"):
        assert not bool(how(step)())
    np.testing.assert_array_equal(w, np.ones([2]))
    for scaler in ls.scalers():
        assert float(scaler.scale) == 8.0
        assert int(scaler.skipped_steps) == 1


def test_a_scaler_of_other_variables_stops_nothing():
    w, v = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([2]))
    own = Momentum([w])
    with scope("float16", RULE):
        with tf.GradientTape(persistent=True) as tape:
            fine, bad = tf.reduce_sum(w), tf.reduce_sum(v) * np.float32(np.inf)
        tape.gradient(bad, v)
        grads = [tape.gradient(fine, w)]
        assert bool(ls.apply_if_finite(lambda: own.apply(grads), grads, [w]))


@pytest.mark.parametrize("resource", [True, False])
@TYPES
def test_a_session_graph_runs_what_apply_returns(dtype, resource):
    with (
        tf.Graph().as_default(),
        scope(dtype, RULE if dtype == "float16" else "auto"),
    ):
        v1.get_variable_scope().set_use_resource(resource)
        ones, zeros = v1.ones_initializer(), v1.zeros_initializer()
        w = v1.get_variable("w", [4, 2], initializer=ones)
        m = v1.get_variable("m", [4, 2], initializer=zeros, trainable=False)
        factor = v1.placeholder(tf.float32, [])
        loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), w)) * factor
        (grad,) = tf.gradients(loss, [w])

        def apply():
            moment = m.assign(0.5 * m + grad)
            return [moment, w.assign_sub(0.125 * moment)]

        train = ls.apply_if_finite(apply, [grad], [w])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            ran = [session.run(train, {factor: f}) for f in (1.0, np.inf, 1.0)]
            assert ran == [True, False, True]
            np.testing.assert_array_equal(session.run(w), np.full([4, 2], 0.6875))


def test_a_session_graph_is_told_what_to_run():
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2])
        (grad,) = tf.gradients(tf.reduce_sum(w), [w])
        with pytest.raises(LossScaleError, match="returns nothing to run"):
            ls.apply_if_finite(lambda: None, [grad], [w])


def test_replicas_that_cannot_agree_are_refused(monkeypatch):
    w = tf.Variable(tf.ones([2]))
    monkeypatch.setattr(tf.distribute, "in_cross_replica_context", lambda: False)
    monkeypatch.setattr(replicas, "cannot_agree", lambda: True)
    with pytest.raises(LossScaleError, match="cannot agree here"):
        ls.apply_if_finite(lambda: None, [tf.ones([2])], [w])


def test_an_update_by_a_hooked_optimizer_inside_is_one_update():
    w = tf.Variable(tf.ones([2]), name="w")
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer.build([w])

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * factor
        grads = [tape.gradient(loss, w)]
        return ls.apply_if_finite(lambda: optimizer.apply(grads, [w]), grads, [w])

    with scope("float16", RULE):
        assert not bool(step(tf.constant(np.inf)))
        assert bool(step(tf.constant(1.0)))
    (scaler,) = ls.scalers()
    assert int(optimizer.iterations) == int(scaler.skipped_steps) == 1
