"""`standing_still`: which functions run in float32 because their job stands still.

Used by `function_twins`, and its rule by sessions. Two things tell of it: scalers whose
gradients are never finite (`loss_scaling.stalls`), and a check of accuracy in which
products in 16 bits lose every gradient. Here it is decided which functions read their
variables: those that take the gradients, and those that evaluate. Nothing is called or
made here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from amp.integration import fallback
from amp.integration.observing import accuracy_check
from amp.integration.process import PROCESS
from amp.integration.racing import exemptions
from amp.integration.runtime import failures
from amp.loss_scaling.process import SCALING
from amp.policy import Policy


class Standstill(NamedTuple):
    """Why a function is to run in float32.

    Attributes:
      says: what the user is to be told.
      cause: what became of its plan, in reports.
    """

    says: str
    cause: str


NOISE = Standstill(
    "gradients by its variables are noise in 16 bits, as what is left to learn is less "
    "than their rounding",
    failures.LOST,
)
_NOT_KNOWN = fallback.Part("whether a function stands still is not known")


def watched(policy: Policy) -> bool:
    """Whether what is never finite is to run in float32 under a policy.

    When that is found out depends on timing, as what races does, and it is a check of
    accuracy: who does without either does without this.
    """
    return not accuracy_check.why_not(policy) and not exemptions.repeats(policy)


def counts(still: Standstill, policy: Policy) -> bool:
    """Whether what was found of a job is to change it under a policy."""
    if still is NOISE:
        return not accuracy_check.why_not(policy)
    return watched(policy)


def lost(weights: Iterable[Any]) -> None:
    """Has all functions come by, as 16 bits lose every gradient by some weights.

    Args:
      weights: handles of variables, as functions are called with.
    """
    for gone in [one for one in PROCESS.lost if not any(_held(one))]:
        PROCESS.lost.remove(gone)
    PROCESS.lost.append([weakref.ref(handle) for handle in weights])
    if SCALING.ask is not None:
        SCALING.ask()


def standing_still(policy: Policy, inputs: Sequence[Any]) -> Standstill | None:
    """Why a function is to run in float32 from now on, if it is.

    Args:
      policy: with every "auto" settled.
      inputs: of a call; with the handles of the variables that the function reads.
    """
    if not (SCALING.standing or PROCESS.lost) or accuracy_check.why_not(policy):
        return None
    own = set(map(id, inputs))
    return fallback.attempt(_NOT_KNOWN, lambda: _found(policy, own), lambda: None)


def _found(policy: Policy, own: set[int]) -> Standstill | None:
    standing = list(SCALING.standing.values()) if watched(policy) else []
    for reference, says in standing:
        scaler = reference()
        if scaler is not None and not own.isdisjoint(scaler.handles()):
            return Standstill(says, failures.STANDS_STILL)
    for weights in PROCESS.lost:
        if not own.isdisjoint(_held(weights)):
            return NOISE
    return None


def _held(references: Iterable[weakref.ReferenceType[Any]]) -> Iterator[int]:
    """The identities of what is still there."""
    there = (reference() for reference in references)
    yield from (id(each) for each in there if each is not None)
