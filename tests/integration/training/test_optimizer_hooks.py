"""v1 optimizers in session graphs: an overflow leaves every bit as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration import active
from amp.integration.install import install
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, state
from amp.loss_scaling.process import SCALING

pytestmark = pytest.mark.kernels

v1 = tf.compat.v1
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.1, momentum=0.9),
    "centered": lambda: v1.train.RMSPropOptimizer(0.1, momentum=0.9, centered=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.1),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "proximal": lambda: v1.train.ProximalGradientDescentOptimizer(0.1),
    "proximal adagrad": lambda: v1.train.ProximalAdagradOptimizer(0.1),
    "adagrad da": lambda: v1.train.AdagradDAOptimizer(
        0.1, v1.train.get_or_create_global_step()
    ),
}
KINDS = [(resource, flow) for resource in (True, False) for flow in ("v1", "v2")]


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def scope(monkeypatch):
    def enter(rule):
        monkeypatch.setattr(active, "active_loss_scale", lambda: rule)

    enter(DynamicLossScale(initial=8.0))
    return enter


@contextlib.contextmanager
def control_flow(version: str) -> Iterator[None]:
    if version == "v1":
        v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


@contextlib.contextmanager
def session_graph(*, resource: bool = False, flow: str = "v2") -> Iterator[v1.Session]:
    """A session on a graph of its own; variables are references unless said."""
    with tf.Graph().as_default() as graph, control_flow(flow):
        v1.get_variable_scope().set_use_resource(resource)
        with v1.Session(graph=graph) as session:
            yield session


def model(factor):
    """A loss with a dense and a sparse gradient, duplicate rows among it."""
    table = v1.get_variable("table", initializer=tf.ones([5, 2]))
    w = v1.get_variable("w", initializer=tf.constant([[0.5], [-0.25]]))
    rows = tf.nn.embedding_lookup(table, [1, 3, 3])
    return tf.reduce_mean(tf.tanh(rows @ w)) * factor


def bits(session, variables):
    return [np.asarray(value).tobytes() for value in session.run(list(variables))]


@pytest.mark.parametrize(("resource", "flow"), KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_changes_no_bit(scope, name, resource, flow):
    with session_graph(resource=resource, flow=flow) as session:
        factor = v1.placeholder(tf.float32, [])
        loss = model(factor)
        step = v1.train.get_or_create_global_step()
        train = OPTIMIZERS[name]().minimize(loss, global_step=step)
        averages = tf.train.ExponentialMovingAverage(0.5, num_updates=step)
        with tf.control_dependencies([train]):
            train = averages.apply(v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        session.run(train, {factor: 1.0})
        everything = v1.global_variables()
        for value in (np.inf, np.nan, -np.inf):
            before = bits(session, everything)
            session.run(train, {factor: value})
            assert bits(session, everything) == before
        session.run(train, {factor: 1.0})
        changed = zip(before, bits(session, everything), strict=True)
        names = {
            v.op.name for v, (a, b) in zip(everything, changed, strict=True) if a != b
        }
        assert {"global_step", "w/ExponentialMovingAverage"} <= names
        assert session.run(step) == 2


def weights_after(factors, *, resource, flow, build):
    with session_graph(resource=resource, flow=flow) as session:
        factor = v1.placeholder(tf.float32, [])
        train = build(model(factor))
        session.run(v1.global_variables_initializer())
        for value in factors:
            session.run(train, {factor: value})
        return session.run(v1.trainable_variables())


OPTIONS = {
    "gate none": {"gate_gradients": v1.train.Optimizer.GATE_NONE},
    "gate graph": {"gate_gradients": v1.train.Optimizer.GATE_GRAPH},
    "colocated": {"colocate_gradients_with_ops": True},
    "aggregation": {"aggregation_method": v1.AggregationMethod.EXPERIMENTAL_TREE},
    "accumulated": {
        "aggregation_method": v1.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N
    },
    "grad_loss": {"grad_loss": lambda: tf.constant(0.5)},
}


@pytest.mark.parametrize(("resource", "flow"), KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_minimize_train_as_without(scope, option, resource, flow):
    fields = OPTIONS[option]

    def build(loss):
        given = {k: v() if k == "grad_loss" else v for k, v in fields.items()}
        return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, **given)

    how = {"resource": resource, "flow": flow, "build": build}
    # A scale of 8 multiplies and divides exactly, so not one bit may differ.
    found = weights_after([1.0, np.inf, 2.0, 3.0], **how)
    scope(None)
    if option == "gate none":  # by itself it may read weights that are half updated
        fields = {}
    wanted = weights_after([1.0, 2.0, 3.0], **how)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_by_hand_take_seeds_and_stops(scope):
    def build(loss):
        table, w = v1.trainable_variables()
        stopped = tf.reduce_sum(w * w)
        grads = v1.gradients(
            [loss, stopped + loss],
            [table, w],
            grad_ys=[tf.constant(2.0), None],
            stop_gradients=[stopped],
            gate_gradients=True,
        )
        optimizer = v1.train.AdamOptimizer(0.1)
        clipped, _ = tf.clip_by_global_norm(grads, 1.0)
        return optimizer.apply_gradients(list(zip(clipped, [table, w], strict=True)))

    how = {"resource": False, "flow": "v1", "build": build}
    found = weights_after([1.0, np.nan, 2.0], **how)
    scope(None)
    wanted = weights_after([1.0, 2.0], **how)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


class Averaging(v1.train.Optimizer):
    """Wraps an optimizer and averages what it trains, as tf.contrib's did."""

    def __init__(self, inner):
        super().__init__(False, "Averaging")
        self.inner, self.averages = inner, tf.train.ExponentialMovingAverage(0.5)

    def compute_gradients(self, *args, **kwargs):
        return self.inner.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        train = self.inner.apply_gradients(pairs, global_step, name)
        with tf.control_dependencies([train]):
            return tf.group(self.averages.apply([v for _, v in pairs]))


@pytest.mark.parametrize(("resource", "flow"), KINDS)
def test_a_wrapper_that_averages_is_left_out_whole(scope, resource, flow):
    with session_graph(resource=resource, flow=flow) as session:
        factor = v1.placeholder(tf.float32, [])
        loss = model(factor)
        step = v1.train.get_or_create_global_step()
        wrapper = Averaging(v1.train.AdamOptimizer(0.1))
        train = wrapper.minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        session.run(train, {factor: 1.0})
        before = bits(session, v1.global_variables())
        session.run(train, {factor: np.inf})
        assert bits(session, v1.global_variables()) == before
        session.run(train, {factor: 1.0})
        assert session.run(step) == 2


def test_averages_in_tf2_stay_with_their_variables(scope):
    w = tf.Variable([1.0, 2.0])
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    averages = tf.train.ExponentialMovingAverage(0.5)

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w) * factor
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        averages.apply([w])

    step(tf.constant(1.0))
    everything = [w, averages.average(w), *optimizer.variables()]
    before = [v.numpy().tobytes() for v in everything]
    step(tf.constant(np.inf))
    assert [v.numpy().tobytes() for v in everything] == before
    step(tf.constant(1.0))
    after = [v.numpy().tobytes() for v in everything]
    assert all(a != b for a, b in zip(before, after, strict=True))


def averaged(factors):
    """The average of a variable after updates from two lines, by an order of losses."""
    w = tf.Variable(1.0)
    optimizer = tf.keras.optimizers.SGD(0.1)
    averages = tf.train.ExponentialMovingAverage(0.5)

    def pretrain(factor):
        with tf.GradientTape() as tape:
            loss = w * factor
        return tape.gradient(loss, w)

    def train(factor):
        with tf.GradientTape() as tape:
            loss = w * w * factor
        return tape.gradient(loss, w)

    def step(gradient):
        def update(factor):
            optimizer.apply_gradients([(gradient(factor), w)])
            averages.apply([w])

        return tf.function(update)

    steps = {pretrain: step(pretrain), train: step(train)}
    for function, factor in factors(pretrain, train):
        steps[function](tf.constant(factor))
    return averages.average(w).numpy(), w


@pytest.mark.parametrize("rests", [False, True])
def test_averages_go_on_after_another_gradient_overflowed(scope, rests):
    def overflowed(pretrain, train):
        yield from [(pretrain, 0.0), (pretrain, np.inf), (train, 1.0)]
        if rests:
            SCALING.resting.update(state.current().scalers)
            SCALING.generation += 1
        yield from [(train, 1.0)] * 20

    def not_overflowed(pretrain, train):
        return [(pretrain, 0.0), *[(train, 1.0)] * 21]

    average, w = averaged(overflowed)
    scalers = [scaler for scaler, _ in state.serving([w])]
    assert [int(s.skipped_steps) for s in scalers] == [1, 0]
    assert not any(s.left_out.numpy().any() for s in scalers)
    assert average == averaged(not_overflowed)[0]


@pytest.mark.parametrize(("resource", "flow"), KINDS)
def test_averages_of_a_session_go_on_after_another_overflow(scope, resource, flow):
    with session_graph(resource=resource, flow=flow) as session:
        factor = v1.placeholder(tf.float32, [])
        w = v1.get_variable("w", initializer=1.0)
        other = v1.get_variable("other", initializer=1.0)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pretrain = optimizer.compute_gradients((w + other) * factor)
        train = optimizer.compute_gradients(w * w * factor, [w])
        averages = tf.train.ExponentialMovingAverage(0.5)
        steps = []
        for gradients in (pretrain, train):
            with tf.control_dependencies([optimizer.apply_gradients(gradients)]):
                steps.append(averages.apply([w]))
        session.run(v1.global_variables_initializer())
        session.run(steps[0], {factor: np.inf})
        assert session.run(averages.average(w)) == 1.0
        session.run(steps[1], {factor: 1.0})
        assert session.run([w, averages.average(w)]) == pytest.approx([0.8, 0.9])


def test_averages_of_tensors_and_of_others_go_on(scope):
    with session_graph(resource=True) as session:
        factor = v1.placeholder(tf.float32, [])
        other = v1.get_variable("other", initializer=4.0, trainable=False)
        loss = model(factor)
        train = v1.train.AdamOptimizer(0.1).minimize(loss)
        averages = tf.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([train]):
            both = tf.group(averages.apply([other]), averages.apply([factor + 1.0]))
        session.run(v1.global_variables_initializer())
        session.run(other.assign(0.0))
        session.run(both, {factor: np.nan})
        assert session.run(averages.average(other)) == 2.0


def test_a_constant_scale_leaves_out_too(scope):
    scope(ConstantLossScale(8.0))
    build = lambda loss: v1.train.AdamOptimizer(0.1).minimize(loss)  # noqa: E731
    how = {"resource": False, "flow": "v2", "build": build}
    once, twice = weights_after([1.0], **how), weights_after([1.0, np.inf], **how)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("resource", [True, False])
def test_what_overflows_in_16_bits_alone_is_left_out(resource):
    # 2**20 is over 65504, float16's largest number, so the rewritten graph overflows.
    rule = DynamicLossScale(initial=2.0**20)
    settings = {"emulate": True, "assignment": "all", "loss_scale": rule}
    policy = amp.Policy(dtype="float16", strict=True, **settings)
    with amp.mixed_precision_scope(policy), session_graph(resource=resource) as session:
        w = v1.get_variable("w", initializer=tf.ones([4, 4]))
        hidden = tf.ones([2, 4]) @ w
        loss = tf.reduce_sum(hidden @ w)
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        everything = v1.global_variables()
        (scaler,) = state.current().states
        first = bits(session, everything)
        runs = 0
        while session.run(step) == 0:
            assert bits(session, everything) == first
            session.run(train)
            runs += 1
        skipped, scale = session.run([scaler.skipped_steps, scaler.scale])
        assert skipped == runs - 1 > 0
        assert scale == rule.initial * 2.0**-skipped
        assert np.isfinite(session.run(w)).all()
