"""`called_backward`: a gradient through a function that bends it has no scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import custom_gradient

import amp
from amp.graph_rewrite.graph.ir import SEED, UNSCALE

SCALED = amp.Policy(dtype="float16", emulate=True, loss_scale="dynamic", check=False)
ROWS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
Layer = Callable[[tf.Tensor], tf.Tensor]


def layer(backward: Callable[..., Any]) -> Layer:
    @tf.custom_gradient
    def through(y: tf.Tensor) -> Any:
        return tf.identity(y), backward

    return through


def clipping() -> Layer:
    return layer(lambda dy: tf.clip_by_norm(dy, 0.5))


def in_a_branch() -> Layer:
    through = clipping()
    return lambda y: tf.cond(tf.reduce_sum(y) < 1e9, lambda: through(y), lambda: -y)


def two_functions_deep() -> Layer:
    return tf.function(clipping())


LAYERS = {each.__name__: each for each in (clipping, in_a_branch, two_functions_deep)}


def in_a_function(called: Layer) -> np.ndarray:
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(called(x @ weight) ** 2)
        return tape.gradient(loss, weight)

    found: np.ndarray = step(tf.constant(ROWS)).numpy()
    return found


def around_a_branch(called: Layer) -> np.ndarray:
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        y = x @ weight
        y = tf.cond(tf.reduce_sum(y) < 1e9, lambda: called(y), lambda: -y)
        return tf.gradients(tf.reduce_sum(y**2), weight)[0]

    found: np.ndarray = step(tf.constant(ROWS)).numpy()
    return found


def in_a_session(called: Layer) -> np.ndarray:
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable(
            "w", initializer=np.ones([3, 2], "f"), use_resource=True
        )
        loss = tf.reduce_sum(called(tf.constant(ROWS) @ weight) ** 2)
        (gradient,) = tf.gradients(loss, [weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found: np.ndarray = session.run(gradient)
            return found


def eagerly(called: Layer) -> np.ndarray:
    weight = tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(called(tf.constant(ROWS) @ weight) ** 2)
    found: np.ndarray = tape.gradient(loss, weight).numpy()
    return found


def whole_loss(called: Layer) -> np.ndarray:
    """Of a function that is called two deep, weights and all."""
    weight = tf.Variable(tf.ones([3, 2]))
    loss_of = tf.function(lambda x: tf.reduce_sum(called(x @ weight) ** 2))
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(tf.constant(ROWS))
    first, again = (tape.gradient(loss, weight).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)
    found: np.ndarray = again
    return found


def beside_a_list(called: Layer) -> np.ndarray:
    """Of a function whose gradient is given a list of tensors too."""
    weight, row = tf.Variable(tf.ones([3, 2])), tf.constant([2])

    @tf.function
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = x @ weight
        rows = tf.raw_ops.TensorListFromTensor(tensor=y, element_shape=row)
        return called(y), rows

    with tf.GradientTape() as tape:
        y, rows = both(tf.constant(ROWS))
        again = tf.raw_ops.TensorListStack(
            input_handle=rows, element_shape=row, element_dtype=tf.float32
        )
        loss = tf.reduce_sum(y**2) + tf.reduce_sum(again)
    found: np.ndarray = tape.gradient(loss, weight).numpy()
    return found


EAGER = (eagerly, whole_loss, beside_a_list)


@pytest.mark.parametrize("how", [in_a_function, around_a_branch, in_a_session, *EAGER])
@pytest.mark.parametrize("name", LAYERS)
def test_what_a_function_clips_is_what_it_is_without_a_scale(
    how: Callable[[Layer], np.ndarray], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = how(tf.function(LAYERS[name]()))
    with amp.mixed_precision_scope(SCALED):
        called = tf.function(LAYERS[name]())
        for _ in range(2):  # the function's gradient is there by then
            # Products of 3, and of 4 rows up to 1, each rounded to 2**-11 in float16.
            np.testing.assert_allclose(
                how(called), expected, rtol=2.0**-8, atol=2.0**-10
            )
    said = [text for text in caplog.messages if "are not scaled" in text]
    assert len(said) == 1
    assert "test_called_backward.py" in said[0]
    assert ("may be on the way" in said[0]) == (how in EAGER)


def test_a_gradient_penalty_is_what_it_is_without_a_scale() -> None:
    """Eagerly, through a loop: TensorFlow hands lists of tensors to both gradients."""
    called, weight = clipping(), tf.Variable([[0.1], [0.2], [0.3]])

    @tf.function
    def loop(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, y * y + x

        return tf.while_loop(lambda i, _: i < 3, body, [0, called(x)])[1]

    def take() -> np.ndarray:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(loop(weight)) * 0.3
            norm = tf.reduce_sum(inner.gradient(loss, weight) ** 2)
        found: np.ndarray = outer.gradient(norm, weight).numpy()
        return found

    expected = take()
    with amp.mixed_precision_scope(SCALED):
        # Nothing of so small a step is in 16 bits, and the scale is a power of two.
        np.testing.assert_allclose(take(), expected, rtol=2.0**-20)


class Clipping(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.through = clipping()

    @tf.function(input_signature=[tf.TensorSpec([4, 2])])
    def call(self, y: tf.Tensor) -> tf.Tensor:
        return self.through(y)


def of_weights(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(x @ weight) ** 2)
    return tf.reduce_sum(tape.gradient(loss, weight) ** 2)


def of_weights_and_inputs(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.tanh(x @ weight) ** 2)
    of_x, of_weight = tape.gradient(loss, [x, weight])
    return tf.reduce_sum((tf.norm(of_x, axis=1) - 1.0) ** 2) + tf.norm(of_weight)


def of_weights_in_a_branch(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    taken = tf.reduce_sum(x) < 1e9
    return tf.cond(taken, lambda: of_weights(x, weight), lambda: tf.reduce_sum(x))


def of_one_step(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(x @ weight) ** 2)
    return tf.reduce_sum(tf.tanh(x @ (weight - 0.1 * tape.gradient(loss, weight))) ** 2)


@pytest.mark.parametrize(
    "penalty", [of_weights, of_weights_and_inputs, of_weights_in_a_branch, of_one_step]
)
@pytest.mark.parametrize("assignment", ["cost", "all"])
def test_an_eager_gradient_of_what_a_function_made_of_one_of_its_own(
    assignment: Any, penalty: Callable[[tf.Tensor, tf.Variable], tf.Tensor]
) -> None:
    """The first one's scale in its products is none in those of the second."""
    start = np.linspace(-0.5, 0.6, 6, dtype=np.float32).reshape(3, 2)

    def found() -> np.ndarray:
        weight, called = tf.Variable(start), tf.function(penalty)
        with tf.GradientTape() as tape:
            loss = called(tf.constant(ROWS), weight)
        gradient: np.ndarray = tape.gradient(loss, weight).numpy()
        return gradient

    expected = found()
    with amp.mixed_precision_scope(dataclasses.replace(SCALED, assignment=assignment)):
        # Products of up to 4 terms up to 1, each rounded to 2**-11, in four layers.
        np.testing.assert_allclose(found(), expected, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("how", [in_a_function, in_a_session, eagerly])
def test_what_a_loaded_model_clips_is_clipped(
    how: Callable[[Layer], np.ndarray], tmp_path: Path
) -> None:
    """Its gradient is a function, and not one that `tf.custom_gradient` was given."""
    tf.saved_model.save(Clipping(), str(tmp_path))
    expected = how(tf.saved_model.load(str(tmp_path)).call)
    with amp.mixed_precision_scope(SCALED):
        found = how(tf.saved_model.load(str(tmp_path)).call)
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=2.0**-10)


@pytest.mark.parametrize("how", [in_a_function, eagerly])
def test_what_was_traced_before_there_were_hooks_is_clipped(
    how: Callable[[Layer], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = how(clipping())
    with amp.mixed_precision_scope(SCALED):
        pass  # puts hooks in place, if no test has
    hooked = custom_gradient._graph_mode_decorator
    with monkeypatch.context() as without:
        original = hooked.__wrapped__
        without.setattr(custom_gradient, "_graph_mode_decorator", original)
        concrete = tf.function(clipping()).get_concrete_function(tf.TensorSpec([4, 2]))
    with amp.mixed_precision_scope(SCALED):
        found = how(concrete)
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=2.0**-10)


@pytest.mark.parametrize("traced", [False, True])
def test_an_overflow_is_none_of_the_update(traced: bool) -> None:
    """Without a scale too, as an infinite gradient would stay in the weights."""
    called, weight = tf.function(clipping()), tf.Variable(tf.ones([3, 2]))
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build([weight])

    def step(factor: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(called(tf.constant(ROWS) @ weight))
            loss += tf.reduce_sum(weight) * factor
        gradient = tape.gradient(loss, weight)
        optimizer.apply_gradients([(gradient, weight)])
        return gradient

    with amp.mixed_precision_scope(SCALED):
        run = tf.function(step) if traced else step
        assert not run(tf.constant(np.inf)).numpy().any()
        np.testing.assert_array_equal(weight.numpy(), np.ones([3, 2]))
        assert run(tf.constant(1.0)).numpy().any()
    assert (weight.numpy() != 1.0).any()


def test_a_gradient_beside_it_stays_scaled(caplog: pytest.LogCaptureFixture) -> None:
    linear, clips = tf.function(layer(lambda dy: 2.0 * dy)), tf.function(clipping())
    with amp.mixed_precision_scope(SCALED):
        in_a_function(clips)
        caplog.clear()
        weight = tf.Variable(tf.ones([3, 2]))

        @tf.function
        def step() -> tf.Tensor:
            loss = tf.reduce_sum(linear(tf.constant(ROWS) @ weight) ** 2)
            return tf.gradients(loss, weight)[0]

        operations = step.get_concrete_function().graph.get_operations()
    assert [op.type for op in operations if UNSCALE in op.node_def.attr] == ["MulNoNan"]
    assert not caplog.messages


def test_a_gradient_in_the_same_function_stays_scaled() -> None:
    first, second = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([3, 2]))
    with amp.mixed_precision_scope(SCALED):
        clips = tf.function(clipping())

        @tf.function
        def step() -> list[tf.Tensor]:
            bent = tf.reduce_sum(clips(tf.constant(ROWS) @ first) ** 2)
            plain = tf.reduce_sum((tf.constant(ROWS) @ second) ** 2)
            return tf.gradients(bent, first) + tf.gradients(plain, second)

        operations = step.get_concrete_function().graph.get_operations()
    seeds = [op.inputs[1] for op in operations if SEED in op.node_def.attr]
    assert [tf.get_static_value(scale) for scale in seeds] == [1.0, None]


def test_one_that_reads_the_scale_stays_scaled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scale is that of an earlier trace of the same gradient call."""
    weight = tf.Variable(tf.ones([3, 2]))

    def clipped(dy: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_norm(dy, 0.5 * amp.loss_scaling.scalers()[-1].scale)

    called = tf.function(layer(clipped))

    @tf.function
    def step(clips: bool) -> tf.Tensor:
        y = tf.constant(ROWS) @ weight
        y = called(y) if clips else y
        return tf.gradients(tf.reduce_sum(y**2), weight)[0]

    with amp.mixed_precision_scope(SCALED):
        step(False)
        found = step(True).numpy()
    np.testing.assert_allclose(
        found, in_a_function(clipping()), rtol=2.0**-8, atol=2.0**-10
    )
    assert not [text for text in caplog.messages if "are not scaled" in text]
