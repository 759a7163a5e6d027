"""What an update computes can be read outside of it, though it may be skipped."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.training import left_values
from amp.loss_scaling import DynamicLossScale

keras = pytest.importorskip("keras")
v1 = tf.compat.v1
POLICY = amp.Policy(
    dtype="float16",
    emulate=True,
    loss_scale=DynamicLossScale(initial=4.0, growth_interval=1000),
    strict=True,
    trial=False,
)


class Kept(keras.optimizers.SGD):
    """Keeps what it computes, in each of the ways in which programs do."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        norm = tf.norm(gradient)
        self.norm = norm
        self.both = {"norm": norm, "rates": [tf.cast(learning_rate, tf.float32), 3]}
        self.found = tf.reduce_all(tf.math.is_finite(gradient))
        super().update_step(gradient, variable, learning_rate)


class KeptRows(Kept):
    """Keeps a tensor of a size that is not known, which XLA does not compile."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.rows = tf.boolean_mask(gradient, gradient[:, 0] > 0)
        super().update_step(gradient, variable, learning_rate)


MODES = {"function": (KeptRows, None), "xla": (Kept, True)}


@pytest.mark.parametrize("mode", MODES)
def test_what_an_optimizer_keeps_is_read_after_the_update(mode: str) -> None:
    kind, how = MODES[mode]
    variable, optimizer = keras.Variable(np.ones((2, 1), "f4")), kind(0.5)

    @tf.function(autograph=False, jit_compile=how)
    def step(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        read = (optimizer.norm, optimizer.both["norm"], optimizer.both["rates"][0])
        return *read, optimizer.found, getattr(optimizer, "rows", 0.0)

    with amp.mixed_precision_scope(POLICY):
        *good, rows = step(tf.constant([[3.0], [4.0]]))
        weights = variable.numpy()
        *bad, none = step(tf.constant([[np.inf], [4.0]]))
    assert [float(value) for value in good] == [5.0, 5.0, 0.5, 1.0]
    if kind is KeptRows:
        np.testing.assert_array_equal(rows, [[3.0], [4.0]])
        np.testing.assert_array_equal(none, [[0.0]])  # of 1, where none is known
    np.testing.assert_array_equal(weights, [[-0.5], [-1.0]])
    assert [float(value) for value in bad] == [0.0] * 4  # it did not run
    np.testing.assert_array_equal(variable.numpy(), weights)


# But for those that take other optimizers.
OWN = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
)


@pytest.mark.parametrize("name", OWN)
def test_optimizers_of_keras_keep_no_tensor_of_an_update(name: str) -> None:
    """So their updates need not be asked for any (`may_keep`)."""
    if name == "Muon" and keras.__version__.startswith("3.12."):
        pytest.skip("this Keras asks TensorFlow's variables for a name they lack")
    kind = getattr(keras.optimizers, name)
    more = {"clipnorm": 1.0, "use_ema": True, "weight_decay": 0.1}
    variable, optimizer = keras.Variable(np.ones((2, 2), "f4")), kind(0.5, **more)
    assert not left_values.may_keep(optimizer)
    assert left_values.may_keep(type("Own", (kind,), {})(0.5))
    optimizer.build([variable])
    function = tf.function(lambda g: optimizer.apply([g], [variable]), autograph=False)
    function(tf.ones([2, 2]))
    kept = tf.nest.flatten([list(vars(optimizer).values())])
    assert not any(map(tf.is_symbolic_tensor, kept))


class Inside(keras.optimizers.SGD):
    """Keeps what it computes in a branch, a loop and a function of its own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        def clip() -> Any:
            self.last = tf.clip_by_norm(gradient, 1.0)
            return self.last

        def halved(grad: Any) -> list[Any]:
            self.half = grad / 2
            return [self.half]

        @tf.function(autograph=False)
        def doubled(grad: Any) -> Any:
            self.twice = grad * 2
            return self.twice

        self.norm = tf.norm(gradient)
        grad = tf.cond(self.norm > 1.0, clip, lambda: gradient)
        (grad,) = tf.while_loop(lambda g: tf.norm(g) > 0.6, halved, [grad])
        super().update_step(doubled(grad), variable, learning_rate)


def test_what_is_kept_of_a_branch_in_an_update_stays_there() -> None:
    """It could not be read outside without a scope either, and the step trains."""
    variable, optimizer = keras.Variable(np.ones((2, 1), "f4")), Inside(0.5)

    @tf.function(autograph=False)
    def step(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return optimizer.norm

    with amp.mixed_precision_scope(POLICY):
        assert step(tf.constant([[3.0], [4.0]])) == 5.0
        np.testing.assert_allclose(variable.numpy(), [[0.7], [0.6]], rtol=1e-6)
        assert step(tf.constant([[np.inf], [4.0]])) == 0.0
    np.testing.assert_allclose(variable.numpy(), [[0.7], [0.6]], rtol=1e-6)


class Looped(v1.train.GradientDescentOptimizer):
    """Keeps what it computes in a branch and in a loop of TensorFlow 1."""

    def _resource_apply_dense(self, gradient: Any, variable: Any) -> Any:
        def clip() -> Any:
            self.last = tf.clip_by_norm(gradient, 1.0)
            return self.last

        def halved(grad: Any) -> list[Any]:
            self.half = grad / 2
            return [self.half]

        self.norm = tf.norm(gradient)
        grad = tf.cond(self.norm > 1.0, clip, lambda: gradient)
        (grad,) = tf.while_loop(lambda g: tf.norm(g) > 0.6, halved, [grad])
        return super()._resource_apply_dense(grad, variable)


@pytest.mark.parametrize("factor", [1.0, 0.125], ids=["clipped", "not clipped"])
def test_what_is_kept_of_a_loop_in_a_session_s_update_stays_there(
    factor: float,
) -> None:
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        optimizer = Looped(1.0)
        x, train = graph(optimizer)
        with started() as session:
            feed = {x: np.full([2, 4], factor, np.float32)}
            norm, _ = session.run([optimizer.norm, train], feed)
            weights = session.run(v1.global_variables()[0])
    assert norm == 4.0 * factor
    assert weights[:, 0].tolist() == [0.75] * 4


class Logged(v1.train.GradientDescentOptimizer):
    """Writes summaries of what it updates by."""

    def _resource_apply_dense(self, gradient: Any, variable: Any) -> Any:
        v1.summary.scalar("norm", tf.norm(gradient))
        return super()._resource_apply_dense(gradient, variable)


def graph(optimizer: Any) -> tuple[Any, Any]:
    x = v1.placeholder(tf.float32, [2, 4])
    ones = v1.ones_initializer()
    weights = v1.get_variable("w", [4, 1], initializer=ones, use_resource=True)
    return x, optimizer.minimize(tf.reduce_sum(x @ weights))


def started() -> Any:
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session


@pytest.mark.parametrize("factor", [1.0, 3e38], ids=["finite", "overflow"])
def test_a_session_reads_the_summaries_of_an_update(factor: float) -> None:
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        x, train = graph(Logged(0.5))
        merged = v1.summary.merge_all()
        with started() as session:
            feed = {x: np.full([2, 4], factor, np.float32)}
            text, _ = session.run([merged, train], feed)
    summary = v1.Summary.FromString(text)
    values = [each.simple_value for each in summary.value]
    assert values == ([4.0] if factor == 1.0 else [])


@pytest.mark.parametrize("taken", [True, False])
def test_summaries_of_a_program_s_own_branch_are_none_of_an_update(taken: bool) -> None:
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
            flag = v1.placeholder(tf.bool, [])
            own = lambda: v1.summary.scalar("own", 1.0)  # noqa: E731
            v1.cond(flag, own, lambda: tf.constant(""))
            listed = v1.get_collection(v1.GraphKeys.SUMMARIES)
            x, train = graph(v1.train.GradientDescentOptimizer(0.5))
            assert v1.get_collection(v1.GraphKeys.SUMMARIES) == listed
            with started() as session:
                session.run(train, {x: np.ones([2, 4], np.float32), flag: taken})
                weights = session.run(v1.global_variables()[0])
    finally:
        v1.enable_control_flow_v2()
    np.testing.assert_array_equal(weights, np.zeros([4, 1]))


def test_a_session_reads_the_rate_of_an_optimizer() -> None:
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        optimizer = v1.train.AdamOptimizer(0.125)
        x, train = graph(optimizer)
        with started() as session:
            feed = {x: np.ones([2, 4], np.float32)}
            rate, _ = session.run([optimizer._lr_t, train], feed)
    assert rate == 0.125


def test_what_was_kept_before_stays_what_it_was() -> None:
    """Only what the branch made is replaced: not the tensor of an outer function."""

    class Given(keras.optimizers.SGD):
        given: Any = None

    variable, optimizer = keras.Variable(np.ones((2, 1), "f4")), Given(0.5)

    @tf.function(autograph=False)
    def step(factor: Any) -> Any:
        optimizer.given = given = factor * 2.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        assert optimizer.given is given
        return optimizer.given

    with amp.mixed_precision_scope(POLICY):
        np.testing.assert_array_equal(step(tf.ones([2, 1])), [[2.0], [2.0]])


class Gathered(keras.optimizers.SGD):
    """Keeps what it computes in containers that it made before."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.norms: dict[Any, Any] = {}
        self.last: list[Any] = [None, ({},)]
        self.every: Any = collections.deque(maxlen=2)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        norm = self.norms["first"] = tf.norm(gradient)
        self.norms[1] = [norm]  # keys that have no order
        self.last[0] = self.last[1][0]["norm"] = norm
        self.every.append(norm)
        super().update_step(gradient, variable, learning_rate)


def test_a_container_that_is_changed_in_place_is_read_after_the_update() -> None:
    variable, optimizer = keras.Variable(np.ones((2, 1), "f4")), Gathered(0.5)
    norms, last, every = optimizer.norms, optimizer.last, optimizer.every

    @tf.function(autograph=False)
    def step(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        inner = optimizer.last[1][0]["norm"]
        return norms["first"], norms[1][0], last[0], inner, every[-1]

    with amp.mixed_precision_scope(POLICY):
        for shape in ([2, 1], [1, 1]):  # the second trace finds tensors of the first
            assert all(norm > 0 for norm in step(tf.ones(shape)))
            assert not any(step(tf.fill(shape, np.float32(np.inf))))
    assert optimizer.norms is norms


def test_noise_in_an_update_is_not_the_step_s() -> None:
    """A branch counts its random operations anew, as if it were a step of its own."""

    class Langevin(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.noise = tf.random.normal([64])
            super().update_step(gradient, variable, learning_rate)

    variable, optimizer = keras.Variable(np.ones((2, 1), "f4")), Langevin(0.5)

    @tf.function(autograph=False)
    def step(factor: Any) -> Any:
        noise = tf.random.normal([64])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return noise, optimizer.noise

    tf.random.set_seed(7)
    with amp.mixed_precision_scope(POLICY):
        noise, inside = step(tf.ones([2, 1]))
    assert not np.isin(inside, noise).any()
    assert np.std(inside) > 0.5
