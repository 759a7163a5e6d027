"""What the package tells the user: one style, one logger, warnings that never raise.

Every text begins with "amp: ". The logger is Python's own, by the name "amp"; no
handler is installed and no level is set: that is left to the program. Prints nothing.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

from amp.integration.process import PROCESS

_LOG = logging.getLogger("amp")


def info(text: str, *values: Any) -> None:
    """Logs at level INFO, which Python does not show by default."""
    _LOG.info(f"amp: {text}", *values)


def log(text: str, *values: Any) -> None:
    """Logs at level WARNING, which Python shows by default: news, not failures."""
    _LOG.warning(f"amp: {text}", *values)


def log_once(text: str, *values: Any) -> None:
    """As `log`, the first time in the process that it says this."""
    said = text % values if values else text
    if said not in PROCESS.told:
        PROCESS.told.add(said)
        log("%s", said)


def warn(
    text: str, category: type[Warning] = RuntimeWarning, *, stacklevel: int = 1
) -> None:
    """Warns through Python's `warnings`, without ever raising.

    Where the program turns warnings into errors (`python -W error`), the text is logged
    instead: a job that can go on must not end by it.

    Args:
      text: without "amp: " before it.
      category: the warning's class.
      stacklevel: as of `warnings.warn`, counted from the caller.
    """
    try:
        warnings.warn(f"amp: {text}", category, stacklevel=stacklevel + 1)
    except Warning:
        _LOG.warning("amp: %s", text, extra={"amp_unraised": True})


def warn_once(text: str, *, stacklevel: int = 1) -> None:
    """As `warn`, the first time in the process that it says this."""
    if text not in PROCESS.told:
        PROCESS.told.add(text)
        warn(text, stacklevel=stacklevel + 1)
