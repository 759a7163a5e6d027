"""Branches: `tf.cond`, as the graph that is being built needs it.

No state and no gradients; what is done in a branch is the caller's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def cond(
    pred: tf.Tensor, true_fn: Callable[[], tf.Tensor], false_fn: Callable[[], tf.Tensor]
) -> Any:
    """Returns what one of two branches gives.

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
    """Functions and eager code have control flow of their own, and are left alone."""
    functional = tf.executing_eagerly() or tf.inside_function()
    if functional or not tf.compat.v1.control_flow_v2_enabled():
        yield
        return
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()
