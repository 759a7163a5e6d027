"""`tf.cond`, with v1 control flow in session graphs.

Used by `scaler`, `stalls` and the optimizer hooks. No state and no gradients here.
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

    In a session graph these are branches of v1 control flow, whichever the program
    uses: references cannot enter a function, and an operation keeps its own device, on
    a parameter server too.

    Args:
      pred: bool, shape ().
      true_fn: builds what runs if `pred` holds.
      false_fn: builds what runs otherwise; a tensor of the same dtype and shape.
    """
    with _session_branches():
        return tf.cond(pred, true_fn, false_fn)


@contextlib.contextmanager
def _session_branches() -> Iterator[None]:
    """Switches v1 control flow on inside, in a session graph; else changes nothing."""
    functional = tf.executing_eagerly() or tf.inside_function()
    if functional or not tf.compat.v1.control_flow_v2_enabled():
        yield
        return
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()
