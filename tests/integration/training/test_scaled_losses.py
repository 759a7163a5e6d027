"""Exactly one scaler works on a gradient: where the program has one, ours rests."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install
from amp.integration.training import scaled_losses
from amp.loss_scaling import DynamicLossScale, state

pytestmark = pytest.mark.kernels

keras = pytest.importorskip("keras")
v1 = tf.compat.v1
FLOAT16 = {"dtype": "float16", "emulate": True, "strict": True}
JIT = pytest.mark.parametrize("jit", [False, True])
FACTORS = (1.0, np.inf, 1.0)


@pytest.fixture(autouse=True)
def _installed():
    install()


def scalers():
    return state.current().scalers


class Float16Loss(keras.Model):
    """Learns w of y = w by a loss in float16, which our scaling leaves alone."""

    def __init__(self, in_scope=None):
        super().__init__()
        self.w = self.add_weight(shape=(1,), initializer="ones", autocast=False)
        self.in_scope = in_scope

    def call(self, x):
        return x * tf.convert_to_tensor(self.w)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            half = tf.cast(tf.reduce_mean(self(x)), tf.float16)
            loss = self.optimizer.scale_loss(half)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(grads, self.trainable_variables, strict=True)
        )
        return {"loss": half}


class ScopedUpdate(keras.Model):
    """Takes its gradient outside the scope, and updates inside."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        return x * tf.convert_to_tensor(self.w)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(tf.reduce_mean(self(x)))
        grads = tape.gradient(loss, self.trainable_variables)
        with amp.mixed_precision_scope(**FLOAT16):
            self.optimizer.apply_gradients(
                zip(grads, self.trainable_variables, strict=True)
            )
        return {"loss": loss}


def keras_scaler(initial=8.0):
    inner = keras.optimizers.SGD(0.125)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=initial)


def fit(model, jit):
    """Fits by gradients 1, infinity and 1 of the one weight, which begins as 1."""
    optimizer = keras_scaler()
    model.compile(optimizer, jit_compile=jit)
    x = np.array(FACTORS, np.float32)[:, None]
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    return optimizer


def answered(model, optimizer):
    """Whether Keras' scaling answered the one overflow, and steps were neither more."""
    assert model.w.numpy().tolist() == [0.75]
    assert optimizer.inner_optimizer.iterations.numpy() == 2
    assert float(optimizer.dynamic_scale) == 4.0


@JIT
def test_keras_scales_a_loss_in_float16_that_ours_does_not(jit):
    model = Float16Loss()
    with amp.mixed_precision_scope(**FLOAT16):
        answered(model, fit(model, jit))


@JIT
def test_keras_scales_where_the_scope_is_around_the_update_only(jit):
    model = ScopedUpdate()
    answered(model, fit(model, jit))


@JIT
def test_keras_scales_what_an_error_of_ours_leaves_alone(jit, monkeypatch):
    def broken(*args):
        raise RuntimeError("broken")

    monkeypatch.setattr(state, "find", broken)
    monkeypatch.setattr("amp.loss_scaling.gradients.scaled", broken)
    model = ScopedUpdate()
    with amp.mixed_precision_scope(**FLOAT16):
        answered(model, fit(model, jit))


@JIT
def test_ours_rests_under_fit_where_keras_scales(jit):
    before = len(scalers())
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(inputs, layer(inputs))
    optimizer = keras_scaler()
    model.compile(optimizer, lambda y, found: tf.reduce_mean(found), jit_compile=jit)
    x = np.array(FACTORS, np.float32)[:, None]
    with amp.mixed_precision_scope(**FLOAT16):
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert model.get_weights()[0].tolist() == [[0.75]]
    assert float(optimizer.dynamic_scale) == 4.0
    assert len(scalers()) == before


@pytest.mark.parametrize("mode", ["eager", "function", "nested"])
def test_a_loss_computed_from_a_scaled_one_is_scaled_already(mode):
    w = tf.Variable([1.0])
    optimizer = keras_scaler()
    optimizer.build([w])

    def take(factor):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(w) * factor)
            if mode != "eager":  # there the tape alone knows where a value comes from
                loss += 0.0
        return tape.gradient(loss, [w])

    inner = tf.function(take) if mode == "nested" else take

    def step(factor):
        optimizer.apply(inner(factor), [w])

    step = step if mode == "eager" else tf.function(step)
    before = len(scalers())
    with amp.mixed_precision_scope(**FLOAT16):
        for factor in FACTORS:
            step(tf.constant(factor))
    assert w.numpy().tolist() == [0.75]
    assert float(optimizer.dynamic_scale) == 4.0
    assert len(scalers()) == before


def test_a_failure_to_note_a_loss_is_not_the_jobs(monkeypatch):
    def broken(loss):
        raise RuntimeError("broken")

    monkeypatch.setattr(scaled_losses, "_note", broken)
    optimizer = keras_scaler()
    optimizer.build([tf.Variable([1.0])])
    with pytest.warns(RuntimeWarning, match="taken for an unscaled one.*broken"):
        assert optimizer.scale_loss(tf.constant(2.0)).numpy() == 16.0


def test_what_keras_scales_is_marked_for_the_rewriter():
    w, optimizer = tf.Variable([1.0]), keras_scaler()
    optimizer.build([w])

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(w))
        return tape.gradient(loss, w)

    with amp.mixed_precision_scope(**FLOAT16):
        graph = gradient.get_concrete_function().graph.as_graph_def()
    marks = {n.op for n in graph.node if "_amp_unscale" in n.attr}
    assert marks == {"Identity"}
    assert not [n for n in graph.node if "_amp_seed" in n.attr]


def test_another_loss_by_the_same_variables_is_scaled_by_ours():
    w, optimizer = tf.Variable([1.0]), keras_scaler()
    optimizer.build([w])

    @tf.function
    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            other = tf.reduce_sum(w**2)
            loss = optimizer.scale_loss(tf.reduce_sum(w))
        return tape.gradient(loss, w), tape.gradient(other, w)

    before = len(scalers())
    with amp.mixed_precision_scope(**FLOAT16):
        theirs, ours = gradients()
    assert (theirs.numpy().tolist(), ours.numpy().tolist()) == ([8.0], [2.0])
    assert len(scalers()) == before + 1


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("kind", ["legacy", "new"])
def test_tf_keras_scales_alone(kind, mode):
    tf_keras = pytest.importorskip("tf_keras")
    optimizers = tf_keras.optimizers
    made = (optimizers.legacy if kind == "legacy" else optimizers).SGD(0.125)
    outer = tf_keras.mixed_precision.LossScaleOptimizer(made, initial_scale=8.0)
    w = tf.Variable([1.0])

    def step(factor):
        with tf.GradientTape() as tape:
            loss = outer.get_scaled_loss(tf.reduce_sum(w) * factor)
        grads = outer.get_unscaled_gradients(tape.gradient(loss, [w]))
        outer.apply_gradients(zip(grads, [w], strict=True))

    step = tf.function(step) if mode == "function" else step
    before = len(scalers())
    with amp.mixed_precision_scope(**FLOAT16):
        for factor in FACTORS:
            step(tf.constant(factor))
    assert w.numpy().tolist() == [0.75]
    assert float(outer.loss_scale) == 4.0
    assert len(scalers()) == before


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", ["Adam", "SGD"])
@pytest.mark.parametrize("kind", ["legacy", "new"])
def test_an_update_of_tf_keras_is_left_out_whole(kind, name, mode):
    tf_keras = pytest.importorskip("tf_keras")
    optimizers = tf_keras.optimizers
    kinds = optimizers.legacy if kind == "legacy" else optimizers
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(kinds, name)(0.125, **options)
    w, b = tf.Variable([1.0, -2.0]), tf.Variable(0.5)

    def step(factor):
        with tf.GradientTape() as tape:
            loss = (tf.reduce_sum(w**2) + b**2) * factor
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))

    step = tf.function(step) if mode == "function" else step
    with amp.mixed_precision_scope(**FLOAT16):
        step(tf.constant(1.0))
        variables = optimizer.variables
        everything = [w, b, *(variables() if callable(variables) else variables)]
        before = [v.numpy().tobytes() for v in everything]
        step(tf.constant(np.inf))
        assert [v.numpy().tobytes() for v in everything] == before
        step(tf.constant(1.0))
    assert optimizer.iterations.numpy() == 2
    assert state.serving([w])[0][0].skipped_steps.numpy() == 1


@pytest.mark.parametrize(
    ("kind", "mode"), [("new", "function"), ("new", "eager"), ("legacy", "eager")]
)
def test_an_update_of_tf_keras_returns_how_many_there_were(kind, mode):
    tf_keras = pytest.importorskip("tf_keras")
    optimizers = tf_keras.optimizers
    optimizer = (optimizers.legacy if kind == "legacy" else optimizers).SGD(0.125)
    w = tf.Variable([1.0])

    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2) * factor
        return optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step = tf.function(step) if mode == "function" else step
    with amp.mixed_precision_scope(**FLOAT16):
        counts = [int(step(tf.constant(factor))) for factor in (1.0, np.inf, 1.0)]
    assert counts == [1, 1, 2]


def test_tf_keras_fit_trains_with_one_scaler():
    tf_keras = pytest.importorskip("tf_keras")
    layer = tf_keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", input_shape=(1,)
    )
    model = tf_keras.Sequential([layer])
    inner = tf_keras.optimizers.SGD(0.125)
    outer = tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
    model.compile(outer, lambda y, found: tf.reduce_mean(found))
    x = np.array(FACTORS, np.float32)[:, None]
    with amp.mixed_precision_scope(**FLOAT16):
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert model.get_weights()[0].tolist() == [[0.75]]
    assert float(outer.loss_scale) == 4.0


def test_a_v1_optimizer_that_scales_does_so_alone():
    kind = v1.train.experimental
    with tf.Graph().as_default(), amp.mixed_precision_scope(**FLOAT16):
        rule = kind.DynamicLossScale(initial_loss_scale=8.0)
        inner = v1.train.GradientDescentOptimizer(0.125)
        outer = kind.MixedPrecisionLossScaleOptimizer(inner, rule)
        w = v1.get_variable("w", initializer=[1.0])
        factor = v1.placeholder(tf.float32, [])
        train = outer.minimize(tf.reduce_sum(w) * factor)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for value in FACTORS:
                session.run(train, {factor: value})
            assert session.run(w).tolist() == [0.75]
            assert session.run(rule()) == 4.0
        assert not scalers()


def test_a_scaler_by_hand_sees_overflows_of_ours_as_nan():
    """Nobody can tell that a product is a loss scale; NaN tells it of overflows."""
    rule = DynamicLossScale(initial=8.0, on_overflow="nan")
    w, scale = tf.Variable([1.0]), tf.Variable(8.0, trainable=False)

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * factor * scale
        grad = tape.gradient(loss, w) / scale
        finite = tf.reduce_all(tf.math.is_finite(grad))
        scale.assign(tf.where(finite, scale, scale / 2))
        w.assign_sub(tf.where(finite, 0.125 * grad, tf.zeros_like(grad)))

    with amp.mixed_precision_scope(**FLOAT16, loss_scale=rule):
        for factor in FACTORS:
            step(tf.constant(factor))
    assert w.numpy().tolist() == [0.75]
    assert scale.numpy() == 4.0
    assert state.serving([w])[0][0].scale.numpy() == 4.0
