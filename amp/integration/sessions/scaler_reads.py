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


def read(session: Any, scaler: Scaler, wanted: Sequence[Any]) -> list[Any] | None:
    """Returns the values of variables of a scaler; None before its first step.

    Args:
      session: a session of the scaler's graph.
      scaler: whose variables are read.
      wanted: the variables.

    Raises:
      OpError, RuntimeError: they are out of reach.
    """
    options = tf.compat.v1.RunOptions(timeout_in_ms=_MOST_MILLISECONDS)
    # Past a method `run` of the program's own: it did not ask for this.
    run = functools.partial(tf.compat.v1.Session.run, session, options=options)
    return list(run(wanted)) if run(scaler.begun) else None
