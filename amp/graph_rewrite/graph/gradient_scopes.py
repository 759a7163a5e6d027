"""How deep a node is in gradients, by the name scopes that TensorFlow builds these in.

`GradientTape.gradient` builds in gradient_tape, `tf.gradients` and the optimizers of
TensorFlow 1 in gradients. Nothing but names is read.
"""

from __future__ import annotations

import re

_TAPE = re.compile(r"(?:^|/)gradient_tape(?:_\d+)?(?=/)")
_CALL = re.compile(r"(?:^|/)gradients(?:_\d+)?(?=/)")


def depth(name: str) -> int:
    """0 for a node of a forward pass, 1 for one of its gradient, 2 for a second order.

    A function's gradient is built with `tf.gradients`, and a tape may call it, so a
    node may be in one scope of each kind at first order; the larger count is the order.
    """
    if "gradient" not in name:
        return 0
    return max(len(_TAPE.findall(name)), len(_CALL.findall(name)))
