"""What loss scaling keeps for the whole process, in one object with one `reset`.

Each file reads and writes its own fields of `SCALING`; `integration.process` resets it
with everything else. No TensorFlow, no logic.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

_Standing: TypeAlias = "tuple[weakref.ref[Any], str]"


@dataclasses.dataclass
class Scaling:
    """The state of loss scaling in the process.

    Attributes:
      group: the `group.Scalers` of the process, which users save in checkpoints; empty
        before the first scaler, then of length 1. A `tf.compat.v1` graph keeps its own.
      scalers: every scaler, of session graphs too, by its gradient call. Held by their
        group: a graph and its scalers go together.
      in_sessions: the first scaler of a `tf.compat.v1` graph, by its key; else empty.
      gone: scalers to let go of; appended to by finalizers, which take no lock and run
        no operation.
      past: the updates skipped by scalers of this process that are gone.
      waiting: rows of a weight file, for variables without a scaler so far.
      named: for names that no scaler has so far, rows from a dictionary of states.
      watched: the scalers whose counts `stalls` reads, by their identity.
      gradients: by the identity of an eager gradient, which is held weakly, the call
        that it comes from.
      asked: what is asked about the scalers of stalled jobs, by a scaler's number; the
        next steps answer (see `stalls.Asked`).
      standing: by the number of a scaler whose job stands still (`standstill`), it
        itself, held weakly, and what the user is to be told. Not those of sessions.
      paused: for each who has paused `stalls`, which then reads no count, an object.
      ask: has the next call of every function look at `asked` and `standing`, and
        returns whether any may come by. None before there are hooks. Kept by `reset`.
      updated: by their identity, variables whose update was traced before a scaler of
        theirs was made. Kept by `reset`, like the next: TensorFlow keeps its traces.
      bends: the graphs of functions' gradients that are not linear (`called_backward`).
        Kept too.
      resting: scalers whose gradients are not scaled.
      generation: a number that is part of every trace key.
    """

    group: list[Any] = dataclasses.field(default_factory=list)
    scalers: weakref.WeakValueDictionary[Any, Any] = dataclasses.field(
        default_factory=weakref.WeakValueDictionary
    )
    in_sessions: list[Any] = dataclasses.field(default_factory=list)
    gone: collections.deque[Any] = dataclasses.field(default_factory=collections.deque)
    past: int = 0
    waiting: list[Any] = dataclasses.field(default_factory=list)
    named: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    watched: dict[int, Any] = dataclasses.field(default_factory=dict)
    gradients: dict[int, Any] = dataclasses.field(default_factory=dict)
    asked: dict[int, Any] = dataclasses.field(default_factory=dict)
    standing: dict[int, _Standing] = dataclasses.field(default_factory=dict)
    paused: set[object] = dataclasses.field(default_factory=set)
    ask: Callable[[], bool] | None = None
    updated: dict[int, weakref.ref[Any]] = dataclasses.field(default_factory=dict)
    bends: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    resting: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    generation: int = 0

    def reset(self) -> None:
        """Forgets everything but what TensorFlow's traces depend on."""
        fresh = Scaling(
            updated=self.updated,
            bends=self.bends,
            generation=self.generation,
            ask=self.ask,
        )
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(fresh, field.name))


SCALING = Scaling()
