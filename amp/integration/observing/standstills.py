"""`standing_still`: which functions run in float32 because their job stands still.

Used by `function_twins`, and its rule by sessions. `loss_scaling.stalls` tells which
scalers have gradients that are never finite and a scale that does not help; here, which
functions read their variables: those that take the gradients, and those that evaluate.
Nothing is called or made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp.integration import fallback
from amp.integration.observing import gradient_check
from amp.integration.racing import exemptions
from amp.loss_scaling.process import SCALING
from amp.policy import Policy

_NOT_KNOWN = fallback.Part("whether a function stands still is not known")


def watched(policy: Policy) -> bool:
    """Whether what stands still is to run in float32 under a policy.

    When that is found out depends on timing, as what races does, and it is a check of
    accuracy: who does without either does without this.
    """
    return not gradient_check.why_not(policy) and not exemptions.repeats(policy)


def standing_still(policy: Policy, inputs: Sequence[Any]) -> str:
    """What the user is to be told of a function that stands still; else "".

    Args:
      policy: with every "auto" settled.
      inputs: of a call; with the handles of the variables that the function reads.
    """
    if not SCALING.standing or not watched(policy):
        return ""
    return fallback.attempt(_NOT_KNOWN, lambda: _found(inputs), lambda: "")


def _found(inputs: Sequence[Any]) -> str:
    own = set(map(id, inputs))
    for reference, says in list(SCALING.standing.values()):
        scaler = reference()
        if scaler is not None and not own.isdisjoint(scaler.handles()):
            return says
    return ""
