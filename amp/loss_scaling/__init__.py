"""Loss scaling: the rules, the scalers there are, and scaling by hand.

Importing this package imports no TensorFlow; only its functions need it, when called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from amp import lazy_names
from amp.loss_scaling.scale import ConstantLossScale, DynamicLossScale, NoLossScale

if TYPE_CHECKING:
    from amp.integration.by_hand import off as off
    from amp.integration.by_hand import scale_loss as scale_loss
    from amp.integration.by_hand import scaler_for as scaler_for
    from amp.integration.by_hand import unscale as unscale
    from amp.integration.own_updates import apply_if_finite as apply_if_finite
    from amp.loss_scaling.group import Scalers
    from amp.loss_scaling.scaler import Scaler

# What knows of scopes and hooks is loaded when it is first used.
_HOME = {
    "apply_if_finite": "amp.integration.own_updates",
    "off": "amp.integration.by_hand",
    "scale_loss": "amp.integration.by_hand",
    "scaler_for": "amp.integration.by_hand",
    "unscale": "amp.integration.by_hand",
}
__all__ = [
    "ConstantLossScale",
    "DynamicLossScale",
    "NoLossScale",
    "apply_if_finite",
    "current",
    "off",
    "scale_loss",
    "scaler_for",
    "scalers",
    "unscale",
]
__getattr__ = lazy_names.getter(__name__, _HOME)


def current() -> Scalers:
    """Returns this process's scalers: `.scale`, `.scalers`, a place in checkpoints.

    ::

        tf.train.Checkpoint(model=model, loss_scale=amp.loss_scaling.current())
        numbers = amp.loss_scaling.current().state_dict()  # as Python numbers

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


def __dir__() -> list[str]:
    return list(__all__)
