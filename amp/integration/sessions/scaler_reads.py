"""Reads the variables of a session's scalers between runs of the program.

For `session_stalls` and `skipped_counts`. A scaler without values is asked nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.loss_scaling.scaler import Scaler

# A task with variables may be gone.
_MOST_MILLISECONDS = 2000


def read(
    session: Any, wanted: Sequence[tuple[Scaler, Sequence[Any]]]
) -> list[list[Any] | None]:
    """Returns the values of variables of scalers, in two runs for all of them.

    Args:
      session: a session of the scalers' graph.
      wanted: scalers, and which of their variables are read.

    Returns:
      The values, by the place in `wanted`; None of a scaler before its first step.

    Raises:
      OpError, RuntimeError: some are out of reach.
    """
    if not wanted:
        return []
    options = tf.compat.v1.RunOptions(timeout_in_ms=_MOST_MILLISECONDS)
    # Past a method `run` of the program's own: it did not ask for this.
    run = functools.partial(tf.compat.v1.Session.run, session, options=options)
    begun = run([scaler.begun for scaler, _ in wanted])
    places = [place for place, has in enumerate(begun) if has]
    found: list[list[Any] | None] = [None] * len(wanted)
    if places:
        values = run([list(wanted[place][1]) for place in places])
        for place, got in zip(places, values, strict=True):
            found[place] = got
    return found
