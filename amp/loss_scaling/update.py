"""What an optimizer does with an overflow: leave the whole update out, and say so once.

Public TensorFlow only; how an optimizer is found, built and called is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.loss_scaling import state

Concern: TypeAlias = tuple[state.Scaler, list[int]]


def unless_overflow(concerns: Sequence[Concern], apply: Callable[[], Any]) -> Any:
    """Runs `apply`, or instead answers the overflow that waits for these variables.

    ::

        if any overflow of a concerned scaler, for the variables updated here:
          clear these; skipped_steps += 1
        else:
          apply()

    Args:
      concerns: the scalers of the variables updated, and the variables' positions.
      apply: the whole update, with nothing left to build; its result is dropped.

    Returns:
      Whether the update ran, bool, shape ().
    """
    flags = [_pending(scaler, positions) for scaler, positions in concerns]
    pending = tf.reduce_any(tf.stack(flags)) if len(flags) > 1 else flags[0]

    def skip() -> tf.Tensor:
        pairs = zip(concerns, flags, strict=True)
        return _after(tf.group(*[_answer(*c, flag) for c, flag in pairs]), False)

    def run() -> tf.Tensor:
        return _after(apply(), True)

    return tf.cond(pending, skip, run)


def _pending(scaler: state.Scaler, positions: list[int]) -> tf.Tensor:
    overflow = scaler.overflow.read_value()
    if len(positions) < overflow.shape[0]:
        overflow = tf.gather(overflow, positions)
    return tf.reduce_any(overflow > 0)


def _answer(scaler: state.Scaler, positions: list[int], flag: tf.Tensor) -> Any:
    answered = tf.constant([i in positions for i in range(scaler.overflow.shape[0])])
    overflow = scaler.overflow.read_value()
    return tf.group(
        scaler.overflow.assign(tf.where(answered, tf.zeros_like(overflow), overflow)),
        scaler.skipped_steps.assign_add(tf.cast(flag, tf.int64)),
    )


def _after(done: Any, value: bool) -> tf.Tensor:
    if tf.executing_eagerly() or not isinstance(done, (tf.Operation, tf.Tensor)):
        return tf.constant(value)
    with tf.control_dependencies([done]):
        return tf.constant(value)
