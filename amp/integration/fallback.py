"""What happens when something of ours fails: the user's code runs as it was.

The only place that says so, and the only one that catches every exception: under
`strict` the failure is raised, otherwise the user is warned once and goes on. What the
user's own code raises never comes by here.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

from amp.errors import AmpError
from amp.integration import messages

_T = TypeVar("_T")
_STRICT: contextvars.ContextVar[bool] = contextvars.ContextVar("strict", default=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a call that is ours, and what becomes of the call without it.

    Attributes:
      says: what the warning says, such as "function f runs in float32, as it was".
      strict: whether a failure is raised; None: as `strictly` around it says.
      raises: errors that are the user's to see whatever `strict` says.
    """

    says: str
    strict: bool | None = None
    raises: tuple[type[Exception], ...] = ()


def attempt(part: Part, ours: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
    """Returns what `ours` gives; where that fails, what `otherwise` gives.

    Args:
      part: what is attempted, and what to do when it fails.
      ours: must not call the user's code, which would run a second time.
      otherwise: gives what leaves the user's code as it was.

    Raises:
      Exception: what `ours` raised, under `strict` or if it is one of `part.raises`.
    """
    try:
        return ours()
    except part.raises:
        raise
    except Exception as e:
        if _STRICT.get() if part.strict is None else part.strict:
            raise
        failed(part.says, e)
    return otherwise()


@contextlib.contextmanager
def strictly(strict: bool) -> Iterator[None]:
    """Has parts that know of no policy raise inside, or not: a file, a device."""
    before = _STRICT.set(strict)
    try:
        yield
    finally:
        _STRICT.reset(before)


def attempt_quietly(ours: Callable[[], _T], otherwise: _T) -> _T:
    """As `attempt`, where nobody misses what fails: a measurement among hundreds."""
    try:
        return ours()
    except Exception:
        return otherwise


def failed(says: str, error: Exception) -> None:
    """Warns, once, of a failure of ours that was made good."""
    text = f"{type(error).__name__}: {error}"
    ours = "" if isinstance(error, AmpError) else "Please report this. "
    messages.warn_once(
        f"{says}: {text}\n{ours}AMP_STRICT=1 turns this warning into the error.",
        stacklevel=2,
    )
