"""Updates that were traced before a scaler of their variables was made.

Such a trace asks nobody whether a gradient overflowed, so it must not be used once
there is somebody to ask. Which function is traced, and how a trace is found again, is
not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from amp.loss_scaling.process import SCALING


def note(variables: Sequence[Any]) -> None:
    """Remembers variables whose update is traced without knowing all their scalers."""
    for variable in variables:
        key = id(variable)
        if key not in SCALING.updated:
            SCALING.updated[key] = weakref.ref(variable)
            forget = SCALING.updated.pop
            weakref.finalize(variable, forget, key, None).atexit = False


def made(sources: Sequence[Any]) -> None:
    """A scaler of these variables was made: functions that update one trace again."""
    updated = SCALING.updated
    if any(updated.get(id(source), tuple)() is source for source in sources):
        updated.clear()  # what traces again is noted again
        SCALING.generation += 1


def generation() -> int:
    """A number that is part of every trace key: traces of an earlier one are stale."""
    return SCALING.generation
