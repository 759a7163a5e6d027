"""The hook for Keras' `finalize_variable_values`, which `fit` calls at its end.

With `use_ema` it sets the weights to their averages, and these are zeros until the
first update. Where all updates so far were left out, the weights stay what they are.
Which updates are left out is not decided here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amp.integration import fallback, wrapping
from amp.loss_scaling import state


def _keras_finalize(original: wrapping.Function) -> wrapping.Function:
    def finalize_variable_values(self: Any, *args: Any, **kwargs: Any) -> Any:
        if fallback.attempt_quietly(lambda: _begun(self), True):
            return original(self, *args, **kwargs)
        return None

    return finalize_variable_values


def _begun(optimizer: Any) -> bool:
    """Whether an optimizer's averages have values, or have none for another reason."""
    if not (tf.executing_eagerly() and optimizer.use_ema and state.any_scaler()):
        return True
    return int(optimizer.iterations) > 0 or not state.skipped_steps()


KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "BaseOptimizer.finalize_variable_values": _keras_finalize,
}
