"""Whether `tf.debugging.enable_check_numerics` is on where a gradient is taken.

The check raises at the first infinite value, which dynamic loss scaling meets by
design: it would end a job that goes on without this package. `gradient_hooks` does not
scale such a gradient. Nothing of the check itself is changed.
"""

from __future__ import annotations

from tensorflow.python.debug.lib import check_numerics_callback

from amp import messages
from amp.integration import fallback
from amp.loss_scaling.scale import DynamicLossScale, LossScale

_PART = fallback.Part("whether numerics are checked is not known")


def forbid(rule: LossScale) -> bool:
    """Whether the check is on in this thread and a rule may make values infinite.

    If so, it is said once. A scale that the user has fixed is left to the user.
    """
    if not isinstance(rule, DynamicLossScale):
        return False
    if not fallback.attempt(_PART, _enabled, lambda: False):
        return False
    messages.log_once(
        "losses are not scaled while tf.debugging.enable_check_numerics() is on: it "
        "takes an overflow, by which dynamic loss scaling finds its scale, for an "
        "error. Small gradients may become 0 in float16; a fixed scale, such as "
        "loss_scale=128 (AMP_LOSS_SCALE=128), prevents that"
    )
    return True


def _enabled() -> bool:
    return hasattr(check_numerics_callback._state, "check_numerics_callback")
