"""What the user is told when a twin cannot be made or run.

Used by `function_twins`, `twins` and sessions. What runs instead is not decided here.
"""

from __future__ import annotations

from amp.integration import fallback, messages


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


def warn_of_refusal(what: str, plan: str, refusal: Exception, *, others: bool) -> None:
    """Warns that TensorFlow cannot start a twin.

    Args:
      what: the function or run.
      plan: the name of the twin's plan.
      refusal: the error that the call of the twin raised.
      others: whether twins by other plans are left.
    """
    part = without(what, plan) if others else as_it_was(what)
    fallback.failed(part.says, refusal)


def warn_of_no_comparison(name: bytes, error: Exception) -> None:
    """Warns that TensorFlow cannot start what records a function's first step."""
    fallback.failed(f"gradients of function {name.decode()} are not compared", error)


def warn_of_memory(what: str) -> None:
    """Warns that the original ran out of memory in its turn of a race."""
    messages.warn(
        f"{what} ran out of memory in float32 while it was tried "
        "against its twin, which takes over. This one call began twice: what the first "
        "had done by then (a batch taken, a counter) is done. AMP_TRIAL=0 tries "
        "nothing."
    )
