"""Whether the gradients of a call are finite, each by itself.

Used by `gradients`. Nothing is scaled here, and no state changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Gradient: TypeAlias = Any  # tf.Tensor | tf.IndexedSlices | None
# A scope for a tensor; nodes that are built in it are colocated with it.
Beside: TypeAlias = Callable[[tf.Tensor], contextlib.AbstractContextManager[None]]


def anywhere(tensor: tf.Tensor) -> contextlib.AbstractContextManager[None]:
    """A scope in which nodes are colocated with nothing."""
    return contextlib.nullcontext()


def finite_each(grads: Sequence[Gradient], beside: Beside) -> dict[int, tf.Tensor]:
    """Whether each gradient is finite, bool, shape (), by its position.

    Rows of IndexedSlices with the same index are summed first, because optimizers sum
    them, and a sum of finite rows may overflow. Results that are not scaled are left
    out.
    """
    checks = {}
    for index, grad in enumerate(grads):
        if scales(grad):
            with beside(values_of(grad)):
                checks[index] = tf.reduce_all(_is_finite(_deduplicated(grad)))
    return checks


def all_of(checks: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """Whether all gradients are finite, bool, shape ()."""
    flags = list(checks.values())
    if not flags:
        return tf.constant(True)
    return tf.reduce_all(tf.stack(flags)) if len(flags) > 1 else flags[0]


def after_step(finite: tf.Tensor, in_session: bool) -> tf.Tensor:
    """The flag of a call, for those who may read it only after the scaler's step.

    To be called in the scope of control dependencies on that step.

    Args:
      finite: whether all gradients are finite, bool, shape ().
      in_session: whether the scaler is a session's. Its graphs need an operation that
        waits, those of loops and branches too; other functions keep operations with
        state in order.
    """
    return tf.identity(finite) if in_session else finite


def as_gradient(given: Any) -> Gradient:
    """What a program gives as a gradient, as a tensor; IndexedSlices and None stay.

    It may be a variable of TensorFlow or Keras that gradients were summed in, or an
    array.
    """
    if given is None or isinstance(given, tf.IndexedSlices):
        return given
    return tf.convert_to_tensor(given)


def scales(grad: Gradient) -> bool:
    """Whether a gradient is a number that was scaled: not None, and not an integer."""
    if grad is None:
        return False
    return bool(grad.dtype.is_floating or grad.dtype.is_complex)


def values_of(grad: Gradient) -> tf.Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _deduplicated(grad: Gradient) -> tf.Tensor:
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    # As many segments as rows keeps the shape static, which XLA needs.
    rows = tf.unique(tf.reshape(grad.indices, [-1]), out_idx=tf.int32).idx
    return tf.math.unsorted_segment_sum(grad.values, rows, tf.shape(grad.values)[0])


def _is_finite(values: tf.Tensor) -> tf.Tensor:
    if values.dtype.is_complex:
        parts = (tf.math.real(values), tf.math.imag(values))
        return tf.logical_and(*map(tf.math.is_finite, parts))
    return tf.math.is_finite(values)
