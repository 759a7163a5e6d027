"""Scalers at rest: their gradients are not scaled, as they depend on the scale.

Gradients are linear in what comes in, and so may be scaled, but for a custom gradient
that has a threshold, takes a sign, or leaves out what comes in. Who finds that out is
not known here, and neither are traces.
"""

from __future__ import annotations

from collections.abc import Iterable

from amp import messages
from amp.loss_scaling import advice, group
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scaler import Scaler


def rests(scaler: Scaler | None) -> bool:
    """Whether the gradient call of a scaler is made without a scale."""
    return scaler is not None and scaler in SCALING.resting


def rest(labels: Iterable[str]) -> None:
    """Has gradient calls made without a scale from now on, and says so.

    Functions are traced again for it.

    Args:
      labels: of gradients that depend on the scale (`Scaler.label`).
    """
    bent: dict[str, list[str]] = {}
    for label in filter(None, labels):
        number, _, variable = label.partition(":")
        bent.setdefault(number, []).append(variable)
    for scaler in group.current().scalers if bent else ():
        variables = bent.get(str(scaler.number))
        if variables and not rests(scaler):
            SCALING.resting.add(scaler)
            SCALING.generation += 1
            messages.log("%s", _told(scaler, variables))


def _told(scaler: Scaler, variables: list[str]) -> str:
    where = f" at {scaler.line}" if scaler.line else ""
    return (
        f"loss scaler {scaler.name!r}{where} rests: the gradients of "
        f"{advice.listed(variables)} depend on the loss scale, so they were wrong in "
        "the first steps. A tf.custom_gradient on the way is not linear in what comes "
        "in: it clips it, takes its sign or ignores it. These gradients are no longer "
        "scaled, and small ones may become 0 in float16. Clip what tape.gradient "
        "returns instead, or multiply the threshold by the scale (see "
        "docs/loss_scaling.md)"
    )
