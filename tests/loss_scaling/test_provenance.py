"""An overflow keeps the update from being applied that its gradient goes into."""

from __future__ import annotations

import gc
import types

import numpy as np
import pytest
import tensorflow as tf

from amp.integration import active
from amp.integration.install import install
from amp.loss_scaling import DynamicLossScale, current, provenance, state
from amp.loss_scaling.process import SCALING

keras = pytest.importorskip("keras")
v1 = tf.compat.v1
MODES = {
    "eager": lambda step: step,
    "function": tf.function,
    "xla": lambda step: tf.function(step, jit_compile=True),
}


@pytest.fixture(autouse=True)
def _scope(monkeypatch):
    install()
    rule = DynamicLossScale(initial=8.0)
    monkeypatch.setattr(active, "active_loss_scale", lambda: rule)


def main_gradient(w, factor):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w**2) * factor
    return tape.gradient(loss, [w])[0]


def looked_at(w):
    """An auxiliary loss that is never finite, of which only the norm is wanted."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w) * np.nan
    return tf.norm(tape.gradient(loss, [w])[0])


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_that_is_looked_at_stops_no_update(mode, order):
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])

    def step(factor):
        norm = looked_at(w) if order == "before" else 0.0
        grad = main_gradient(w, factor)
        if order == "after":
            norm = looked_at(w)
        optimizer.apply([grad], [w])
        return norm

    step = MODES[mode](step)
    step(tf.constant(1.0))
    assert w.numpy().tolist() == [0.5, 1.0]
    step(tf.constant(np.inf))
    assert w.numpy().tolist() == [0.5, 1.0]
    assert optimizer.iterations.numpy() == 1
    step(tf.constant(1.0))
    assert w.numpy().tolist() == [0.25, 0.5]


def test_clipping_and_weight_decay_are_seen_through():
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])

    @tf.function
    def step(factor):
        looked_at(w)
        (grad,), _ = tf.clip_by_global_norm([main_gradient(w, factor)], 1e6)
        optimizer.apply([grad + 0.0 * w], [w])

    step(tf.constant(1.0))
    assert w.numpy().tolist() == [0.5, 1.0]
    step(tf.constant(np.inf))
    assert optimizer.iterations.numpy() == 1


@pytest.mark.parametrize(
    "apart", ["sum", "accumulator", "variable", "function", "branch", "loop"]
)
def test_an_overflow_is_never_lost_where_the_origin_is_unclear(apart):
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])
    kept = tf.Variable([0.0, 0.0], trainable=False)
    take = tf.function(lambda factor: main_gradient(w, factor))

    def grad(factor):
        if apart == "sum":
            return main_gradient(w, factor) + main_gradient(w, 1.0)
        if apart == "accumulator":
            kept.assign(main_gradient(w, factor))
            return kept.read_value()
        if apart == "variable":
            kept.assign(main_gradient(w, factor))
            return kept
        if apart == "function":
            return take(factor)
        if apart == "branch":
            return tf.cond(factor > 0, lambda: main_gradient(w, factor), lambda: kept)
        return tf.while_loop(
            lambda i, _: i < 1,
            lambda i, total: (i + 1, total + main_gradient(w, factor)),
            (0, tf.zeros([2])),
        )[1]

    step = tf.function(lambda factor: optimizer.apply([grad(factor)], [w]))
    step(tf.constant(np.inf))
    assert (w.numpy().tolist(), optimizer.iterations.numpy()) == ([1.0, 2.0], 0)
    step(tf.constant(1.0))
    assert optimizer.iterations.numpy() == 1


LARGE = 2.0**123  # a gradient by it overflows, and only because it is scaled by 8


def taken_further(w, factor, take, into):
    """A gradient of a loss that is made of one, or one that comes in from another."""
    with tf.GradientTape() as tape:
        if into == "loss":
            target, incoming = tf.reduce_sum((w - 0.125 * take(w, factor)) ** 2), None
        else:
            target, incoming = 2.0 * w, take(w, factor)
    return tape.gradient(target, w, output_gradients=incoming)


def in_a_loop(w, factor):
    return tf.while_loop(
        lambda i, _: i < 1,
        lambda i, total: (i + 1, total + main_gradient(w, factor)),
        (0, tf.zeros([2])),
        maximum_iterations=1,
    )[1]


@pytest.mark.parametrize(
    ("take", "into"),
    [
        (main_gradient, "loss"),
        (main_gradient, "incoming"),
        (tf.function(main_gradient), "loss"),
        (in_a_loop, "loss"),
        (in_a_loop, "incoming"),
    ],
)
def test_an_overflow_goes_on_with_a_gradient_of_its_gradient(take, into):
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])

    @tf.function
    def step(factor):
        optimizer.apply([taken_further(w, factor, take, into)], [w])

    step(tf.constant(LARGE))
    assert (w.numpy().tolist(), optimizer.iterations.numpy()) == ([1.0, 2.0], 0)
    step(tf.constant(1.0))
    assert optimizer.iterations.numpy() == 1


def in_a_branch(w, grad, update):
    return tf.cond(w[0] > 0.0, lambda: update(grad), lambda: 1.0)


def of_a_branch_in_a_loop(w, grad, update):
    def body(i):
        return i + in_a_branch(w, grad, update) + 1.0

    return tf.while_loop(lambda i: i < 1.0, body, [0.0])


def of_a_function(w, grad, update):
    return tf.function(lambda: update(grad))()


def of_an_xla_function(w, grad, update):
    return tf.function(lambda: update(grad), jit_compile=True)()


def as_a_variable_of_a_loop(w, grad, update):
    return tf.while_loop(
        lambda i, _: i < 1.0,
        lambda i, grad: (i + update(grad) + 1.0, grad),
        (0.0, grad),
    )


def as_an_argument(w, grad, update):
    return tf.function(update)(grad)


@pytest.mark.parametrize(
    "hand",
    [in_a_branch, of_a_branch_in_a_loop, of_a_function, of_an_xla_function]
    + [as_a_variable_of_a_loop, as_an_argument],
)
@pytest.mark.parametrize("into", ["loss", "incoming"])
def test_an_overflow_goes_on_into_where_its_gradient_is_handed(into, hand):
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])

    @tf.function
    def step(factor):
        def update(grad):
            further = taken_further(w, factor, lambda *_: grad, into)
            optimizer.apply([further], [w])
            return 0.0

        hand(w, main_gradient(w, factor), update)

    step(tf.constant(LARGE))
    assert (w.numpy().tolist(), optimizer.iterations.numpy()) == ([1.0, 2.0], 0)
    step(tf.constant(1.0))
    assert optimizer.iterations.numpy() == 1


def test_a_gradient_that_a_branch_looks_at_stops_no_update():
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])

    @tf.function
    def step():
        seen = main_gradient(w, np.inf)

        def update():
            optimizer.apply([main_gradient(w, 1.0)], [w])
            return tf.norm(seen)

        tf.cond(w[0] > 0.0, update, lambda: 0.0)

    step()
    assert (w.numpy().tolist(), optimizer.iterations.numpy()) == ([0.5, 1.0], 1)


def test_an_overflow_goes_on_with_an_incoming_gradient_of_eager_code():
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])
    optimizer.apply([taken_further(w, LARGE, main_gradient, "incoming")], [w])
    assert (w.numpy().tolist(), optimizer.iterations.numpy()) == ([1.0, 2.0], 0)


def test_an_overflow_goes_on_with_a_gradient_of_its_gradient_in_a_session():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[1.0, 2.0])
        factor = v1.placeholder(tf.float32, [])
        (grad,) = v1.gradients(tf.reduce_sum(w**2) * factor, [w])
        loss = tf.reduce_sum((w - 0.125 * grad) ** 2)
        train = v1.train.MomentumOptimizer(0.25, 0.0).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(train, {factor: LARGE})
        assert session.run(w).tolist() == [1.0, 2.0]
        session.run(train, {factor: 1.0})
        assert session.run(w).tolist() != [1.0, 2.0]


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
@pytest.mark.parametrize("mode", MODES)
def test_a_variable_that_sums_gradients_may_be_the_gradient(mode, kind):
    w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.25)
    optimizer.build([w])
    total = kind([0.0, 0.0], trainable=False)

    def take(factor):
        total.assign_add(main_gradient(w, factor))

    def update():
        optimizer.apply([total], [w])
        total.assign(tf.zeros([2]))

    take, update = MODES[mode](take), MODES[mode](update)
    update()  # traced before there is a scaler
    for factor, updates in ((1.0, 2), (np.inf, 2), (1.0, 3)):
        take(tf.constant(1.0))
        take(tf.constant(factor))
        update()
        assert optimizer.iterations.numpy() == updates


@pytest.mark.parametrize("resource", [True, False])
def test_a_variable_may_be_the_gradient_in_a_session(resource):
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=resource)
        total = v1.get_variable(
            "total", initializer=[0.0, 0.0], use_resource=resource, trainable=False
        )
        factor = v1.placeholder(tf.float32, [])
        (grad,) = v1.gradients(tf.reduce_sum(w**2) * factor, [w])
        take = v1.assign_add(total, grad).op
        optimizer = v1.train.MomentumOptimizer(0.25, 0.0)
        update = optimizer.apply_gradients([(total, w)])
        session.run(v1.global_variables_initializer())
        session.run(take, {factor: 1.0})
        session.run(take, {factor: np.inf})
        session.run(update)
        assert session.run(w).tolist() == [1.0, 2.0]
        session.run(update)
        assert session.run(w).tolist() == [0.5, 1.0]


def test_a_gradient_by_one_variable_may_update_another():
    """The overflow goes with the gradient, whichever variable it is applied to."""
    w, master = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.25, momentum=0.5)
    optimizer.build([master])

    @tf.function
    def step(factor):
        optimizer.apply([main_gradient(w, factor)], [master])

    step(tf.constant(1.0))
    before = master.numpy().tolist()
    step(tf.constant(np.inf))
    assert master.numpy().tolist() == before
    assert optimizer.iterations.numpy() == 1


@pytest.mark.parametrize("resource", [True, False])
def test_a_gradient_that_a_session_looks_at_stops_no_update(resource):
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=resource)
        factor = v1.placeholder(tf.float32, [])
        norm = tf.norm(v1.gradients(tf.reduce_sum(w) * np.nan, [w])[0])
        optimizer = v1.train.MomentumOptimizer(0.25, 0.0)
        train = optimizer.minimize(tf.reduce_sum(w**2) * factor)
        session.run(v1.global_variables_initializer())
        session.run([train, norm], {factor: 1.0})
        assert session.run(w).tolist() == [0.5, 1.0]
        session.run([train, norm], {factor: np.inf})
        assert session.run(w).tolist() == [0.5, 1.0]
        session.run([train, norm], {factor: 1.0})
        assert session.run(w).tolist() == [0.25, 0.5]


def test_fit_goes_on_beside_a_loss_that_is_never_finite():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
                auxiliary = loss * np.nan
            weights = self.trainable_weights
            tape.gradient(auxiliary, weights)
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=2, verbose=0)
    assert model.optimizer.iterations.numpy() == 4


def test_eager_gradients_are_forgotten_with_their_tensors():
    gc.collect()
    before = len(SCALING.gradients)
    w = tf.Variable([1.0, 2.0])
    grad = main_gradient(w, 1.0)
    (call,) = provenance.calls([grad], [w])
    assert (call.scaler, [0]) in state.serving([w])
    assert provenance.calls([grad + 0.0], [w]) is None
    del grad, call
    gc.collect()
    assert len(SCALING.gradients) == before
    assert current().states


def test_where_a_gradient_of_a_branch_comes_from_is_not_known_outside():
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
            taken = v1.placeholder(tf.bool, [])
            take = lambda: v1.gradients(tf.reduce_sum(w**2), [w])[0]  # noqa: E731
            grad = tf.cond(taken, take, lambda: tf.zeros([2]))
            assert provenance.calls([grad], [w]) is None
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("name", ["Switch", "RefSwitch", "RefMerge", "RefEnter"])
def test_an_edge_of_a_frame_is_one_for_references_too(name):
    assert provenance._is_frame(types.SimpleNamespace(type=name))
