"""What happens when a part of the plugin fails: the user's code runs unchanged.

The only place after which the job goes on whatever was raised: under `strict` the
failure is raised, otherwise the user is warned once. Errors of the user's own code are
never caught here.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

from amp import messages
from amp.errors import AmpError

_T = TypeVar("_T")
_STRICT: contextvars.ContextVar[bool] = contextvars.ContextVar("strict", default=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a call that the plugin adds, and what to do if it fails.

    Attributes:
      says: what the warning says, such as "function f runs in float32, as it was".
      strict: whether a failure is raised; None: as `strictly` around it says.
      raises: errors that the user always sees, whatever `strict` says.
    """

    says: str
    strict: bool | None = None
    raises: tuple[type[Exception], ...] = ()


def attempt(part: Part, ours: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
    """Returns what `ours` returns, or, where that fails, what `otherwise` returns.

    Args:
      part: what is attempted, and what to do when it fails.
      ours: must not call the user's code, which would run a second time.
      otherwise: returns a value with which the user's code runs unchanged.

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
    """Sets `strict` for parts inside that know no policy, such as reading a file."""
    before = _STRICT.set(strict)
    try:
        yield
    finally:
        _STRICT.reset(before)


def attempt_quietly(ours: Callable[[], _T], otherwise: _T) -> _T:
    """As `attempt`, without a warning: for what may be missing, such as one time."""
    try:
        return ours()
    except Exception:
        return otherwise


def attempt_or(ours: Callable[[], _T], otherwise: Callable[[Exception], _T]) -> _T:
    """As `attempt`, but the error is told by what `otherwise` makes of it."""
    try:
        return ours()
    except Exception as e:
        return otherwise(e)


def failed(says: str, error: Exception) -> None:
    """Warns, once, of a failure of the plugin that the job goes on without."""
    text = f"{type(error).__name__}: {error}"
    ours = "" if isinstance(error, AmpError) else "Please report this. "
    messages.warn_once(
        f"{says}: {text}\n{ours}AMP_STRICT=1 turns this warning into the error."
    )
