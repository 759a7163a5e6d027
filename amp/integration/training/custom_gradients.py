"""The hooks for `tf.custom_gradient`, by which a backward function meets no loss scale.

What is unscaled for it is decided in `loss_scaling`: eagerly all that comes in
(`eager_backward`), in graphs where the function is certain to bend it
(`graph_backward`). No arithmetic is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from amp.integration import wrapping
from amp.loss_scaling import eager_backward, graph_backward
from amp.loss_scaling.eager_backward import Backward


def _with(without_scale: Callable[[Backward], Backward]) -> wrapping.Decorate:
    """Returns what makes a hook for one of the two forms of the decorator."""

    def hook(original: wrapping.Function) -> wrapping.Function:
        def decorated(f: Any, args: Any, kwargs: Any) -> Any:
            @functools.wraps(f)
            def forward(*inputs: Any, **named: Any) -> Any:
                result, backward = f(*inputs, **named)
                return result, without_scale(backward)

            return original(forward, args, kwargs)

        return decorated

    return hook


HOOKS: dict[str, wrapping.Decorate] = {
    "custom_gradient._eager_mode_decorator": _with(eager_backward.without_scale),
    "custom_gradient._graph_mode_decorator": _with(graph_backward.without_scale),
}
