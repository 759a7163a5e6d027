"""The hooks for gradients that Python gives, by which they meet no loss scale.

Those of `tf.custom_gradient`, and of `gradient_override_map` in a graph. What is
unscaled for them is decided in `loss_scaling`: eagerly all that comes in
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


_OVERRIDDEN = "_gradient_op_type"  # of an operation: the name of its gradient
_HOOKED = "CustomGradient-"  # in the names of those of `tf.custom_gradient`


def _override(original: wrapping.Function) -> wrapping.Function:
    def found(op: Any) -> Any:
        gradient = original(op)
        name = op.node_def.attr[_OVERRIDDEN].s.decode()
        if gradient is None or not name or name.startswith(_HOOKED):
            return gradient

        def backward(op: Any, *grads: Any) -> Any:
            own = functools.partial(gradient, op)
            return graph_backward.without_scale(own)(*grads)

        return backward

    return found


HOOKS: dict[str, wrapping.Decorate] = {
    "custom_gradient._eager_mode_decorator": _with(eager_backward.without_scale),
    "custom_gradient._graph_mode_decorator": _with(graph_backward.without_scale),
    "ops.get_gradient_function": _override,
}
