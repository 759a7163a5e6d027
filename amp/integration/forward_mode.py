"""Hooks of `tf.autodiff.ForwardAccumulator`: in its scope no gradient is scaled.

The tangent of a scaled gradient is scaled too, and nobody looks whether it is finite:
it may be infinite where the gradient is not, so that no scale backs off. What follows
from being in such a scope is `active`'s matter.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amp import messages
from amp.integration import active, wrapping
from amp.loss_scaling.scale import NoLossScale


def _begin(original: wrapping.Function) -> wrapping.Function:
    def push_accumulator(self: tf.autodiff.ForwardAccumulator) -> Any:
        done = original(self)
        if not isinstance(active.active_loss_scale(), NoLossScale | None):
            messages.log_once(
                "losses are not scaled inside a tf.autodiff.ForwardAccumulator: the "
                "tangents of scaled gradients may be infinite where the gradients are "
                "not. Small gradients may become 0 in float16"
            )
        active.FORWARD.enter()
        return done

    return push_accumulator


def _end(original: wrapping.Function) -> wrapping.Function:
    def pop_accumulator(self: tf.autodiff.ForwardAccumulator) -> Any:
        done = original(self)
        active.FORWARD.leave()
        return done

    return pop_accumulator


HOOKS: dict[str, wrapping.Decorate] = {
    "ForwardAccumulator._push_accumulator": _begin,
    "ForwardAccumulator._pop_accumulator": _end,
}
