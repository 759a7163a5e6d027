"""The hook for `tf.custom_gradient` where it runs eagerly.

Its backward function sees gradients without the loss scale (`loss_scaling
.eager_backward`). No arithmetic is here, and functions that are traced are left alone.
"""

from __future__ import annotations

import functools
from typing import Any

from amp.integration import wrapping
from amp.loss_scaling import eager_backward


def _eager(original: wrapping.Function) -> wrapping.Function:
    def eager(f: Any, args: Any, kwargs: Any) -> Any:
        @functools.wraps(f)
        def forward(*inputs: Any, **named: Any) -> Any:
            result, backward = f(*inputs, **named)
            return result, eager_backward.without_scale(backward)

        return original(forward, args, kwargs)

    return eager


HOOKS: dict[str, wrapping.Decorate] = {"custom_gradient._eager_mode_decorator": _eager}
