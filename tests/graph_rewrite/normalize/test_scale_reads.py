"""`scale_reads`: whether a program reads the scale itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.normalize import (
    copies,
    inline,
    scale_reads,
    wanted_gradients,
)
from amp.integration.runtime import definitions

X = tf.constant([[1.0, -2.0], [3.0, 0.5]])


def own(name: str, threshold: Callable[[], tf.Tensor]) -> bool:
    """Whether a step with a threshold in its gradient reads the scale itself."""
    weight = tf.Variable([[0.5], [0.25]], name=name)

    @tf.custom_gradient
    def clipped(y: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        # Of bits, of which nothing is known: else it meets no scale.
        bits = tf.int32
        return y, lambda dy: tf.minimum(
            tf.bitcast(tf.bitcast(dy, bits), dy.dtype), threshold()
        )

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(x @ weight))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    with amp.mixed_precision_scope(dtype="float16", emulate=True):
        concrete = step.get_concrete_function(X)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    module = inline.inline(module)
    wanted = wanted_gradients.gradients(module)
    copy = copies.computing(module, wanted, f"{module.main.name}_c")
    return scale_reads.outside_seeds(wanted_gradients.holder(module, wanted), copy.main)


def test_a_threshold_in_float32_does_not_read_the_scale() -> None:
    assert not own("plain", lambda: tf.constant(0.5))


def test_a_threshold_times_the_scale_reads_it() -> None:
    def scale() -> tf.Tensor:
        (scaler,) = [s for s in amp.loss_scaling.scalers() if "multiplied" in s.names]
        return tf.convert_to_tensor(scaler.scale)

    assert own("multiplied", lambda: 0.5 * scale())


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_another_variable_is_not_the_scale(value: float) -> None:
    threshold = tf.Variable(value)
    assert not own(f"other{value:.0f}", threshold.read_value)
