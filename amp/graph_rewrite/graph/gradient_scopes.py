"""How deep a node is in gradients, by the name scopes that TensorFlow builds these in.

`GradientTape.gradient` builds in gradient_tape, `tf.gradients` and the optimizers of
TensorFlow 1 in gradients. Nothing but names is read.
"""

from __future__ import annotations

import functools
import re

_TAPE = re.compile(r"(?:^|/)gradient_tape(?:_\d+)?(?=/|$)")
_CALL = re.compile(r"(?:^|/)gradients(?:_\d+)?(?=/|$)")


def depth(name: str) -> int:
    """0 for a node of a forward pass, 1 for one of its gradient, 2 for a second order.

    A function's gradient is built with `tf.gradients`, and a tape may call it, so a
    node may be in one scope of each kind at first order; the larger count is the order.
    """
    return _depth_in(name.rpartition("/")[0]) if "gradient" in name else 0


@functools.lru_cache(maxsize=4096)
def _depth_in(scope: str) -> int:
    return max(len(_TAPE.findall(scope)), len(_CALL.findall(scope)))
