"""Loss scaling: the rules, and the state of the scalers of this process.

Importing this package imports no TensorFlow; only `current` needs it, when called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from amp.loss_scaling.scale import ConstantLossScale, DynamicLossScale, NoLossScale

if TYPE_CHECKING:
    from amp.loss_scaling.group import Scalers
    from amp.loss_scaling.scaler import Scaler

__all__ = [
    "ConstantLossScale",
    "DynamicLossScale",
    "NoLossScale",
    "current",
    "scalers",
]


def current() -> Scalers:
    """Returns this process's scalers: `.scale`, `.scalers`, a place in checkpoints.

    ::

        tf.train.Checkpoint(model=model, loss_scale=amp.loss_scaling.current())

    Inside a `tf.compat.v1` graph these are the scalers of that graph.
    """
    group = importlib.import_module("amp.loss_scaling.group")  # imports TensorFlow
    current: Scalers = group.current()
    return current


def scalers() -> list[Scaler]:
    """Returns the scalers there are, the oldest first.

    ::

        for scaler in amp.loss_scaling.scalers():
            print(scaler.name, float(scaler.scale), int(scaler.skipped_steps))

    Inside a `tf.compat.v1` graph these are the scalers of that graph.
    """
    return current().scalers
