"""Wrappers in the manner of Horovod: all processes apply what they share, by zeros."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from amp.integration import active
from amp.integration.distributed import collectives
from amp.integration.install import install
from amp.loss_scaling import DynamicLossScale, state

keras = pytest.importorskip("keras")
v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def scope(monkeypatch):
    install()
    rule = DynamicLossScale(initial=8.0)
    monkeypatch.setattr(active, "active_loss_scale", lambda: rule)


class Horovod(v1.train.Optimizer):
    """The shape of Horovod's wrapper: gradients are reduced after the inner call."""

    def __init__(self, inner, reduce):
        super().__init__(False, "Distributed")
        self.inner, self.reduce = inner, reduce

    def compute_gradients(self, *args, **kwargs):
        pairs = self.inner.compute_gradients(*args, **kwargs)
        return [(self.reduce(g), v) for g, v in pairs]

    def apply_gradients(self, *args, **kwargs):
        return self.inner.apply_gradients(*args, **kwargs)


def with_another_worker(grad):
    """Averages a gradient with the 0.25 that another worker is said to have."""
    if isinstance(grad, tf.IndexedSlices):
        grad = tf.convert_to_tensor(grad)
    whole = tf.numpy_function(lambda g: (g + np.float32(0.25)) / 2, [grad], tf.float32)
    return tf.ensure_shape(whole, grad.shape)


@pytest.fixture(params=["v1", "v2"])
def flow(request):
    if request.param == "v1":
        v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def test_reduced_gradients_are_applied_with_zeros(flow):
    with tf.Graph().as_default(), v1.Session() as session:
        factor = v1.placeholder(tf.float32, [])
        w = v1.get_variable("w", initializer=[1.0, 2.0])
        loss = tf.reduce_sum(w * w) * factor
        step = v1.train.get_or_create_global_step()
        inner = v1.train.GradientDescentOptimizer(1.0)
        train = Horovod(inner, with_another_worker).minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        before = session.run(w)
        session.run(train, {factor: np.inf})
        # (0 + 0.25) / 2, exact: every worker takes this step.
        np.testing.assert_array_equal(session.run(w), before - np.float32(0.125))
        assert session.run(step) == 1
        (scaler,) = state.current().states
        assert session.run(scaler.scale) == 4.0


class Tape(tf.GradientTape):
    """The shape of Horovod's tape: a subclass that reduces what the tape returns."""

    def gradient(self, target, sources, output_gradients=None):
        grads = super().gradient(target, sources, output_gradients)
        return [(g + 0.25) / 2 for g in grads]


@pytest.mark.parametrize("traced", [False, True])
def test_a_tape_that_reduces_is_applied_with_zeros(traced):
    w = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(1.0)

    def step(factor):
        with Tape() as tape:
            loss = tf.reduce_sum(w * w) * factor
        optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w], strict=True))

    (tf.function(step) if traced else step)(tf.constant(np.inf))
    assert w.numpy().tolist() == [0.875, 1.875]
    assert optimizer.iterations.numpy() == 1


@pytest.mark.parametrize(
    "reduce",
    [
        with_another_worker,
        lambda g: tf.function(with_another_worker)(g),
        lambda g: tf.raw_ops.CollectiveReduce(
            input=g,
            group_size=2,
            group_key=1,
            instance_key=1,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
        ),
    ],
)
def test_reductions_are_seen_between_gradient_and_update(reduce):
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([2]))
        (grad,) = v1.gradients(tf.reduce_sum(w * w), [w])
        assert not collectives.combined([tf.clip_by_norm(grad, 1.0), None])
        assert collectives.combined([tf.clip_by_norm(reduce(grad), 1.0)])


def test_rows_of_ids_from_a_queue_are_skipped():
    """Where a gradient goes says nothing about who has computed it."""
    with tf.Graph().as_default(), v1.Session() as session:
        queue = v1.FIFOQueue(4, [tf.int64], shapes=[[2]])
        factor = v1.placeholder(tf.float32, [])
        table = v1.get_variable("t", initializer=tf.ones([8, 4]), use_resource=True)
        rows = tf.nn.embedding_lookup(table, queue.dequeue())
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.MomentumOptimizer(1.0, 0.5)
        train = optimizer.minimize(tf.reduce_sum(rows) * factor, global_step=step)
        session.run(v1.global_variables_initializer())
        for value in (1.0, np.inf):
            session.run(queue.enqueue([[1, 2]]))
            session.run(train, {factor: value})
        assert session.run(step) == 1
        assert session.run(table)[1:3].tolist() == [[0.0] * 4] * 2


def test_rows_of_ids_from_python_are_skipped():
    table = tf.Variable(tf.ones([8, 4]))
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)

    @tf.function(autograph=False)
    def step(ids, factor):
        ids = tf.ensure_shape(tf.numpy_function(lambda i: i, [ids], tf.int64), [2])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids)) * factor
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for value in (1.0, np.inf):
        step(tf.constant([1, 2], tf.int64), value)
    assert optimizer.iterations.numpy() == 1
    assert table.numpy()[1:3].tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize(
    "work",
    [
        lambda grad, count: tf.convert_to_tensor(grad) / tf.cast(count[0], tf.float32),
        lambda grad, count: tf.reshape(grad, tf.concat([count, [-1]], 0)),
        lambda grad, count: tf.math.divide_no_nan(grad, tf.cast(count[0], tf.float32)),
    ],
)
def test_counts_from_elsewhere_are_no_gradients(work):
    with tf.Graph().as_default():
        count = v1.FIFOQueue(4, [tf.int32], shapes=[[1]]).dequeue()
        w = v1.get_variable("w", initializer=tf.ones([2, 2]))
        rows = tf.nn.embedding_lookup(w, count)
        (grad,) = v1.gradients(tf.reduce_sum(rows * rows), [w])
        assert not collectives.combined([work(grad, count)])


@pytest.mark.parametrize(
    "join",
    [
        lambda grad, other: (grad + other) / 2,
        lambda grad, other: tf.reduce_mean(tf.stack([grad, other]), 0),
        lambda grad, other: grad * 0.5 + other * 0.5,
        lambda grad, other: tf.function(tf.add)(grad, other),
        lambda grad, other: other * 0.5,
    ],
)
def test_gradients_that_a_queue_hands_over_are_seen(join):
    with tf.Graph().as_default():
        other = v1.FIFOQueue(4, [tf.float32], shapes=[[2]]).dequeue()
        w = v1.get_variable("w", initializer=tf.ones([2]))
        (grad,) = v1.gradients(tf.reduce_sum(w * w), [w])
        assert collectives.combined([join(grad, other)])


def test_eager_gradients_are_combined_where_horovod_runs_several(monkeypatch):
    assert not collectives.combined([tf.constant(1.0)])
    library = types.SimpleNamespace(is_initialized=lambda: True, size=lambda: 2)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", library)
    assert collectives.combined([tf.constant(1.0)])
    library.size = lambda: 1
    assert not collectives.combined([tf.constant(1.0)])
