"""`cond`: `tf.cond`, but with TensorFlow 1's control flow in session graphs.

Used by `placement`, `scaler` and `update`. No state and no gradients here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def cond(
    pred: tf.Tensor, true_fn: Callable[[], tf.Tensor], false_fn: Callable[[], tf.Tensor]
) -> Any:
    """Runs one of two branches and returns its tensor.

    In a session graph the branches are built with TensorFlow 1's control flow (Switch
    and Merge), also if the program uses functions for its own: reference variables
    cannot be passed to functions, and without a function every operation keeps its
    device, also on a parameter server.

    Args:
      pred: bool, shape ().
      true_fn: builds what runs if `pred` is true, and returns a tensor.
      false_fn: the same if it is false; a tensor of the same dtype and shape.
    """
    with _session_branches():
        return tf.cond(pred, true_fn, false_fn)


@contextlib.contextmanager
def _session_branches() -> Iterator[None]:
    """A scope in which a session graph is built with TensorFlow 1's control flow.

    In eager code and in functions it has no effect.
    """
    functional = tf.executing_eagerly() or tf.inside_function()
    if functional or not tf.compat.v1.control_flow_v2_enabled():
        yield
        return
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()
