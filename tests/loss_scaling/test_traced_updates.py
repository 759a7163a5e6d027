"""An update answers an overflow whichever scope and trace it is in."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install
from amp.loss_scaling import state, traced_updates
from amp.loss_scaling.process import SCALING

pytestmark = pytest.mark.kernels

keras = pytest.importorskip("keras")
v1 = tf.compat.v1
FLOAT16 = {"dtype": "float16", "emulate": True, "strict": True}


@pytest.fixture(autouse=True)
def _installed():
    install()


def scope():
    return amp.mixed_precision_scope(**FLOAT16)


def momentum(w):
    """An optimizer with momentum 8 for w: an update by zeros moves it."""
    optimizer = keras.optimizers.SGD(0.125, momentum=0.875)
    optimizer.build([w])
    return optimizer


def gradient(w, factor):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w) * factor
    return tape.gradient(loss, w)


def skipped(w):
    return sum(int(s.skipped_steps.numpy()) for s, _ in state.serving([w]))


def bits(w, optimizer):
    return [
        np.asarray(tf.convert_to_tensor(v)).tobytes() for v in (w, *optimizer.variables)
    ]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
@pytest.mark.parametrize("clipped", [False, True])
def test_an_update_outside_the_scope_answers_and_the_next_step_counts(wrap, clipped):
    w = tf.Variable([1.0])
    optimizer = momentum(w)

    @wrap
    def update(grad):
        optimizer.apply([tf.clip_by_norm(grad, 10.0) if clipped else grad], [w])

    for value, steps in ((1.0, 1), (np.inf, 1), (1.0, 2)):
        with scope():
            grad = gradient(w, tf.constant(value))
        before = bits(w, optimizer)
        update(grad)
        assert (bits(w, optimizer) == before) == (value == np.inf)
        assert optimizer.iterations.numpy() == steps
    assert skipped(w) == 1


@pytest.mark.parametrize("traced_in", ["scope", "float32"])
def test_an_update_traced_before_there_was_a_scaler_answers(traced_in):
    w = tf.Variable([1.0])
    optimizer = momentum(w)
    traces = []

    @tf.function
    def update(grad):
        traces.append(grad)
        optimizer.apply([grad], [w])

    @tf.function
    def take(factor):
        return gradient(w, factor)

    def updated(grad):
        if traced_in == "scope":
            with scope():
                update(grad)
        else:
            update(grad)

    updated(tf.constant([1.0]))
    for value in (1.0, np.inf, 1.0):
        with scope():
            grad = take(tf.constant(value))
        before = bits(w, optimizer)
        updated(grad)
        assert (bits(w, optimizer) == before) == (value == np.inf)
    assert skipped(w) == 1
    assert optimizer.iterations.numpy() == 3
    assert len(traces) == 2


def test_an_update_traced_with_one_scaler_answers_a_later_one_too():
    w = tf.Variable([1.0])
    optimizer = momentum(w)

    @tf.function
    def update(grad):
        optimizer.apply([grad], [w])

    with scope():
        update(gradient(w, 1.0))
        grad = gradient(w, np.inf)  # another place, so another scaler
        before = bits(w, optimizer)
        update(grad)
    assert bits(w, optimizer) == before
    assert skipped(w) == 1


def test_a_step_that_takes_its_own_gradient_is_traced_once():
    w = tf.Variable([1.0])
    optimizer = momentum(w)
    traces = []

    @tf.function
    def step(factor):
        traces.append(factor)
        optimizer.apply([gradient(w, factor)], [w])

    before = traced_updates.generation()
    step(tf.constant(1.0))
    with scope():
        for value in (1.0, np.inf, 1.0):
            step(tf.constant(value))
    assert len(traces) == 2  # in float32, and in the scope
    assert traced_updates.generation() == before
    assert skipped(w) == 1


def test_other_scalers_trace_nothing_again():
    w, other = tf.Variable([1.0]), tf.Variable([1.0])
    traced_updates.note([w])
    before = traced_updates.generation()
    with scope():
        gradient(other, 1.0)
    assert traced_updates.generation() == before
    with scope():
        gradient(w, 1.0)
    assert traced_updates.generation() == before + 1


def test_noted_variables_are_held_weakly():
    w = tf.Variable([1.0])
    key = id(w)
    traced_updates.note([w])
    assert key in SCALING.updated
    del w
    gc.collect()
    assert key not in SCALING.updated


@pytest.mark.parametrize("resource", [True, False])
def test_a_session_update_built_outside_the_scope_answers(resource):
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0], use_resource=resource)
        factor = v1.placeholder(tf.float32, [])
        optimizer = v1.train.MomentumOptimizer(0.125, 0.875)
        with scope():
            pairs = optimizer.compute_gradients(tf.reduce_sum(w) * factor)
        train = optimizer.apply_gradients(pairs)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {factor: 1.0})
            before = session.run(v1.global_variables())
            session.run(train, {factor: np.inf})
            after = session.run(v1.global_variables())
            session.run(train, {factor: 1.0})
            end = session.run(w)
    assert [v.tobytes() for v in before] == [v.tobytes() for v in after]
    assert end.tolist() == [1.0 - 0.125 - 0.125 * 1.875]


def test_outside_a_scope_an_update_without_a_scaler_is_called_plainly():
    w = tf.Variable([1.0])
    optimizer = momentum(w)

    @tf.function
    def step(x):
        optimizer.apply([gradient(w, x)], [w])

    graph = step.get_concrete_function(tf.constant(1.0)).graph.as_graph_def()
    assert not [n for n in graph.node if n.op == "If" or "_amp_keep" in n.attr]
