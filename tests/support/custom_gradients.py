"""Custom gradients that tests of eager and of graph backward functions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def reading_rows(weight: tf.Variable) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Rows of a table times a weight; the gradients are clipped rows, and a sign."""

    @tf.custom_gradient
    def read(rows: tf.Tensor, given: tf.Tensor) -> Any:
        def backward(grad: tf.Tensor, variables: Any = None) -> Any:
            values = tf.clip_by_value(grad, -0.5, 0.5)
            slices = tf.IndexedSlices(values, given, tf.shape(rows))
            return (slices, None), [tf.sign(tf.reduce_sum(grad)) for _ in variables]

        return tf.gather(rows, given) * weight, backward

    return read
