"""When the original runs instead of what was made of it, and what the user is told.

Used by functions and sessions, for twins and for steps that return more. Nothing is
called here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeGuard

import tensorflow as tf

from amp import messages
from amp.integration import fallback

# What became of a plan, in reports.
REFUSED = "TensorFlow refused the twin"
NO_MEMORY = "its twin ran out of memory"
TOO_LARGE = "float32 ran out of memory"
NOT_MADE = "not made, its rewrite failed"
STANDS_STILL = "its gradients were not finite any more"
LOST = "its gradients were noise in any 16 bits"

_MEMORY = re.compile(r"\boom\b|out of memory|no memory|allocat", re.IGNORECASE)


def gives_way(error: tf.errors.OpError, begun: Callable[[], bool]) -> bool:
    """Whether the original runs after something that was made of it has failed.

    It does if nothing has run yet, or if memory ran out, which without the plugin it
    might not have. Otherwise variables might be updated twice, so the error is raised.

    Args:
      error: what TensorFlow raised.
      begun: says whether a part of the failed call may have run.
    """
    return out_of_memory(error) or not begun()


def out_of_memory(error: Exception) -> TypeGuard[tf.errors.OpError]:
    """Whether TensorFlow lacked memory; it says the same class of a disk that is full.

    Its allocators' messages, and those of XLA, have one of these words.
    """
    lacks = isinstance(error, tf.errors.ResourceExhaustedError)
    return lacks and _MEMORY.search(str(error)) is not None


def why(error: tf.errors.OpError) -> str:
    """What became of a plan whose twin raised an error."""
    return NO_MEMORY if out_of_memory(error) else REFUSED


def as_it_was(what: str, strict: bool | None = None) -> fallback.Part:
    """What `fallback` is to do if the rewrite of a function or session's graph fails.

    Args:
      what: the function or session, for the warning.
      strict: whether a failure is raised instead.
    """
    says = f"{what} runs in float32, as it was: its rewrite failed"
    return fallback.Part(says, strict)


def without(what: str, plan: str, strict: bool | None = None) -> fallback.Part:
    """The same if one of several plans of a function or run fails.

    Args:
      what: the function or run.
      plan: the plan's name.
      strict: whether a failure is raised instead.
    """
    says = f"{what} races without its plan '{plan}', which failed"
    return fallback.Part(says, strict)


def tell_of_standstill(what: str, says: str) -> None:
    """Tells that float32 runs because a job stood still.

    Args:
      what: the function or run.
      says: what was found, as `loss_scaling.standstill` has it.
    """
    kept = "AMP_CHECK=0 keeps it as it was planned"
    messages.log("%s runs in float32 from now on: %s (%s)", what, says, kept)


def warn_of_refusal(what: str, plan: str, refusal: Exception, *, others: bool) -> None:
    """Warns that TensorFlow cannot start a twin.

    Args:
      what: the function or run.
      plan: the name of the twin's plan.
      refusal: the error that the call of the twin raised.
      others: whether twins by other plans are left.
    """
    if out_of_memory(refusal):
        now = f"races without its plan '{plan}'" if others else "runs in float32"
        lacks = f"the memory does not suffice for its twin: {refusal.message}"
        messages.warn(f"{what} {now}, as {lacks}\n{_TWICE}")
        return
    part = without(what, plan) if others else as_it_was(what)
    fallback.failed(part.says, refusal)


_TWICE = (
    "This one call began twice: what the first had done by then (a batch taken, a "
    "counter) is done."
)


def warn_of_step(says: str, error: tf.errors.OpError) -> None:
    """Warns of a step that was to return more, and gave way to the original.

    Args:
      says: what does not come of it.
      error: what TensorFlow raised.
    """
    if out_of_memory(error):
        messages.warn(f"{says}: the memory does not suffice for it. {_TWICE}")
    else:
        fallback.failed(says, error)


def warn_of_memory(what: str) -> None:
    """Warns that the original ran out of memory in its turn of a race."""
    messages.warn(
        f"{what} ran out of memory in float32 while it was tried "
        f"against its twin, which takes over. {_TWICE} AMP_TRIAL=0 tries nothing."
    )
