"""Loss scaling: the rules, and the state of the scalers of this process.

Importing this package imports no TensorFlow; only `current` needs it, when called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from amp.loss_scaling.scale import ConstantLossScale, DynamicLossScale, NoLossScale

if TYPE_CHECKING:
    from amp.loss_scaling.state import Scalers

__all__ = ["ConstantLossScale", "DynamicLossScale", "NoLossScale", "current"]


def current() -> Scalers:
    """Returns this process's scalers: `.scale`, `.scalers`, a place in checkpoints.

    ::

        tf.train.Checkpoint(model=model, loss_scale=amp.loss_scaling.current())

    Inside a `tf.compat.v1` graph these are the scalers of that graph.
    """
    state = importlib.import_module("amp.loss_scaling.state")  # imports TensorFlow
    scalers: Scalers = state.current()
    return scalers
