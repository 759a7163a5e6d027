"""What the package tells the user: one style, one logger, warnings that never raise.

Every text begins with "amp: ". There are three kinds, by what the user is to do:

* `note`: nothing; news that explains what is seen (a step that takes longer). Once;
  `tell` is for what may come again, such as readings.
* `log`: maybe something; a thing that was asked for does not happen.
* `warn`: something failed, and the job goes on without it.

The logger is Python's own, by the name "amp"; no handler is installed and no level is
set: that is left to the program. What is said is made elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

_LOG = logging.getLogger("amp")
_SHOWN: set[str] = set()  # what was said once
# A warning shows a line of the program, not one of these.
_NOT_THE_PROGRAM = frozenset(
    {
        *("amp", "_tf_amp_start", "_tf_amp_imports", "tensorflow", "keras", "tf_keras"),
        *("contextlib", "functools", "importlib", "threading"),
    }
)


def info(text: str, *values: Any) -> None:
    """Logs at level INFO, which Python does not show by default."""
    _LOG.info(f"amp: {text}", *values)


def note(text: str, *values: Any) -> None:
    """As `tell`, the first time in the process that it says this."""
    _once(tell, text, *values)


def tell(text: str, *values: Any) -> None:
    """Tells news.

    It is logged at level INFO if the program has that shown. If the program has said
    nothing of levels, the line goes to stderr, where a job's other lines are.
    """
    said = text % values if values else text
    if _LOG.isEnabledFor(logging.INFO) or _LOG.level or _LOG.disabled:
        info("%s", said)
    else:
        _write(sys.stderr, said)


def silenced() -> bool:
    """Whether the program has said that it wants no news: by level, or altogether."""
    return _LOG.disabled or _LOG.level > logging.INFO


def to_stderr(text: str) -> None:
    """Writes a line of its start or end to the job's own stderr, whatever is logged."""
    _write(sys.__stderr__, text)  # the job may have replaced and closed the other


def to_stderr_once(text: str) -> None:
    """As `to_stderr`, the first time in the process that it says this."""
    _once(to_stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    """Writes a line, where anybody still listens."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a broken pipe
            stream.write(f"amp: {text}\n")


def log(text: str, *values: Any) -> None:
    """Logs at level WARNING, which Python shows by default."""
    _LOG.warning(f"amp: {text}", *values)


def log_once(text: str, *values: Any) -> None:
    """As `log`, the first time in the process that it says this."""
    _once(log, text, *values)


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns through Python's `warnings`, without ever raising.

    The line that the warning shows is the innermost one of the user's program. Where
    the program turns warnings into errors (`python -W error`), the text is logged
    instead: a job that can go on must not end by it.

    Args:
      text: without "amp: " before it.
      category: the warning's class.
    """
    file, line, names = _place_in_program()
    try:
        warnings.warn_explicit(
            f"amp: {text}",
            category,
            file,
            line,
            module=str(names.get("__name__", "amp")),  # None: nothing is said
            registry=names.setdefault("__warningregistry__", {}),
        )
    except Warning:
        _LOG.warning("amp: %s", text, extra={"amp_unraised": True})


def warn_once(text: str) -> None:
    """As `warn`, the first time in the process that it says this."""
    _once(warn, text)


def forget() -> None:
    """Makes all that was said once new again."""
    _SHOWN.clear()


def _once(say: Callable[[str], None], text: str, *values: Any) -> None:
    """Says a text that comes for the first time in the process."""
    said = text % values if values else text
    if said not in _SHOWN:
        _SHOWN.add(said)
        say(said)


def _place_in_program() -> tuple[str, int, dict[str, Any]]:
    """File, line and globals of the innermost frame of the user's program.

    Where it has none, as when the process ends, the program as it was started, line 0.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_PROGRAM:
            return frame.f_code.co_filename, frame.f_lineno, frame.f_globals
        frame = frame.f_back
    return sys.argv[0] if sys.argv else "python", 0, {}
