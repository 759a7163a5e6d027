"""Sets the loss scale of a compared step as a dynamic scaler would after some steps.

A dynamic scale begins high, and its first steps may overflow; they are skipped, and are
no fault of the twin's. The scaler's own state is restored afterwards.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from amp.graph_rewrite.graph import ir
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.traced import State
from amp.loss_scaling import group
from amp.loss_scaling.scale import DynamicLossScale

_BACKOFF, _TRIES = 2.0**-2, 15  # from one scale to the next; the last is 2**-28 of it


@dataclasses.dataclass(frozen=True, slots=True)
class FittedScale:
    """The loss scale to compare with.

    Attributes:
      scale: the largest scale tried at which all gradients are finite.
      note: what the user should know of it, "" for nothing.
    """

    scale: float
    note: str


def fitted(
    rule: object, twin: ir.Module, gradients: list[ir.Edge], runs: PairedRuns
) -> FittedScale | None:
    """Finds and sets the scale; None where there is no dynamic one.

    Args:
      rule: of loss scaling.
      twin: whose gradients have to be finite.
      gradients: where it has them.
      runs: what runs it.
    """
    if not isinstance(rule, DynamicLossScale) or not gradients:
        return None
    for number in range(_TRIES):
        scale = rule.initial * _BACKOFF**number
        if not hold(runs.state, scale):
            return None
        values = [*runs.values(twin, gradients)]
        if all(np.isfinite(array).all() for array in values):
            return FittedScale(scale, _note(rule, scale))
    hold(runs.state, rule.initial)
    return FittedScale(
        rule.initial, "; with no smaller one are gradients finite either"
    )


def hold(state: State, scale: float) -> bool:
    """Has runs begin with a scale; whether the function has a scaler."""
    held = [state.hold(each.scale, scale) for each in group.current().living()]
    return any(held)


def _note(rule: DynamicLossScale, scale: float) -> str:
    if scale == rule.initial:
        return ""
    text = f"; gradients overflow with {4 * scale:g}, where the rule begins with "
    text += f"{rule.initial:g}"
    if scale < rule.minimum:
        text += (
            f". The rule goes down to {rule.minimum:g} only: take a mean instead of a "
            "sum as the loss, or give DynamicLossScale a lower minimum"
        )
    elif scale < 1:
        text += ". A scale under 1: the loss is large, as a sum over a batch is"
    return text
