"""What the package keeps for the whole process, in one object with one `reset`.

Each room reads and writes its own fields of `PROCESS`. No hook and no logic lives here.
What a thread or an asyncio task keeps to itself is in `active`, not here; the scalers
are in `loss_scaling.process`, which is reset with this.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amp import messages
from amp.loss_scaling.process import SCALING


def _forgotten(make: Callable[[], Any]) -> Any:
    """A field that `reset` makes anew."""
    return dataclasses.field(default_factory=make)


def _kept(make: Callable[[], Any]) -> Any:
    """A field that `reset` leaves as it is."""
    return dataclasses.field(default_factory=make, metadata={"kept": True})


@dataclasses.dataclass
class Process:
    """The state of the process.

    Attributes:
      on: what `enable` switched on (an `active.Active`), None where it is off.
      waiting: a policy that is to be on from the first call (an `active.Waiting`), None
        once it is settled.
      begins: told of the policy, as settled, under which the first function with a
        product in it is planned; None where nobody asked, and afterwards.
      begun_in: the process that was told, so that a fork of it says nothing. Kept.
      settled: what each policy came to on this machine, by the policy.
      marked_graphs: graphs that a scope was entered in while they were built, with the
        twins of that scope.
      marked: the functions that those graphs became, by name.
      marks: by graph, the attributes that nodes built in it now get.
      twins: the twins of every policy settled so far.
      sessions: the twins of graphs that sessions run.
      session_locks: for each of those graphs what is held while its twin grows.
      session_counts: of the sessions that run twins, the updates that they skipped.
      agreed: the rules of loss scaling that all workers are known to have, for each
        optimizer, and for each strategy whose replicas sum gradients themselves.
      carried: optimizers whose workers agreed to send gradients in 16 bits.
      monitors: what wants to see the gradients of steps now and then. Never changed in
        place, as any thread reads it.
      loops: what watches training loops, by where it writes and how often it reads.
      observers: the functions that look at a tensor, by what for and by its type. Kept.
      scaled_losses: eager losses that the program scaled itself, weakly, by their id.
      reports: the newest reports by their numbers, the oldest first.
      report_lines: what finds the source lines of a report on a session's run, by the
        report's number; it holds no graph.
      unwritable: directories for reports that the user was warned of; they are tried
        again all the same.
      measuring: the time that measuring operations has taken, and what it found.
      stored_times: by the file of measured times, its version (time of change, size,
        inode) when it was last parsed, and its contents.
      left: the names of variables that checks have left, to be destroyed at the next.
      lost: for each step of which 16 bits lose every gradient, its weights' handles,
        held weakly.
      trimmed: the most bytes that tensors ever took, once `tensor_pool` had taken all
        that was free, and before. Kept.
      traced: the graph that a function was traced as, by the function's name. Kept by
        `reset`, because TensorFlow does not trace again what it has.
      installed: whether the hooks of TensorFlow are in place, all of them. Kept.
      libraries: those whose hooks are in place too, as `hooks` names them: Keras and
        others that a job may import. Kept.
      wrapped: the hooks that are in place, by their row. Kept.
      open_locks: descriptors of the lock files that are open now. Kept.
      rewrite_numbers: end the names of functions made. Kept, like the next two, because
        no number may be used twice.
      report_numbers: of reports, in the names of their files.
      started, started_in: when (seconds since 1970) and in which directory this object
        was made, which is as the job starts or as it first uses the package. Kept.
      agreement_numbers: of the agreements between workers, which count alike.
    """

    on: Any = None
    waiting: Any = None
    begins: Callable[[Any], None] | None = None
    begun_in: int | None = _kept(lambda: None)
    settled: dict[Any, Any] = _forgotten(dict)
    marked_graphs: weakref.WeakKeyDictionary[Any, Any] = _forgotten(
        weakref.WeakKeyDictionary
    )
    marked: dict[bytes, Any] = _forgotten(dict)
    marks: weakref.WeakKeyDictionary[Any, Any] = _forgotten(weakref.WeakKeyDictionary)
    twins: Living = _forgotten(lambda: Living())
    sessions: weakref.WeakKeyDictionary[Any, Any] = _forgotten(
        weakref.WeakKeyDictionary
    )
    session_locks: weakref.WeakKeyDictionary[Any, Any] = _forgotten(
        weakref.WeakKeyDictionary
    )
    session_counts: SessionCounts = _forgotten(lambda: SessionCounts())
    agreed: weakref.WeakKeyDictionary[Any, set[str]] = _forgotten(
        weakref.WeakKeyDictionary
    )
    carried: weakref.WeakSet[Any] = _forgotten(weakref.WeakSet)
    monitors: weakref.WeakSet[Any] = _forgotten(weakref.WeakSet)
    loops: dict[tuple[str, int | None], Any] = _forgotten(dict)
    observers: dict[Any, Any] = _kept(dict)
    scaled_losses: dict[int, weakref.ReferenceType[Any]] = _forgotten(dict)
    reports: collections.OrderedDict[int, Any] = _forgotten(collections.OrderedDict)
    report_lines: dict[int, Callable[[], Any]] = _forgotten(dict)
    unwritable: set[str] = _forgotten(set)
    measuring: Measuring = _forgotten(lambda: Measuring())
    stored_times: dict[Path, Any] = _forgotten(dict)
    left: collections.deque[str] = _kept(collections.deque)
    lost: list[list[weakref.ReferenceType[Any]]] = _forgotten(list)
    trimmed: tuple[int, int] = _kept(lambda: (0, 0))
    traced: dict[str, weakref.ReferenceType[Any]] = _kept(dict)
    installed: bool = _kept(bool)
    libraries: set[str] = _kept(set)
    wrapped: dict[Any, Any] = _kept(dict)
    open_locks: set[int] = _kept(set)
    rewrite_numbers: Iterator[int] = _kept(lambda: itertools.count(1))
    report_numbers: Iterator[int] = _kept(lambda: itertools.count(1))
    agreement_numbers: Iterator[int] = _kept(itertools.count)
    started: float = _kept(time.time)
    started_in: str = _kept(lambda: _directory_now())

    def reset(self) -> None:
        """Forgets everything but the fields that say that they are kept.

        Called between tests, and by a second copy of the package, whose hooks take the
        place of this one's: hooks that stay in place then have nothing to do.
        """
        fresh = Process()
        for field in dataclasses.fields(self):
            if not field.metadata.get("kept"):
                setattr(self, field.name, getattr(fresh, field.name))
        SCALING.reset()
        messages.forget()


class Living:
    """Objects as long as somebody holds them; any thread may add one, or go through.

    A `WeakSet` raises where another thread adds one meanwhile.
    """

    def __init__(self) -> None:
        self._held: dict[weakref.ref[Any], None] = {}

    def add(self, one: Any) -> None:
        """Adds an object, which can be referred to weakly and hashed."""
        held = self._held
        held[weakref.ref(one, lambda gone: held.pop(gone, None))] = None

    def __iter__(self) -> Iterator[Any]:
        found = [reference() for reference in list(self._held)]
        return iter([one for one in found if one is not None])

    def __len__(self) -> int:
        return len(self._held)


@dataclasses.dataclass
class Measuring:
    """What `measuring.job_timer` has done in this process.

    Attributes:
      spent: seconds taken of the budget.
      times: what was measured, by the name of the device (`hardware.model`) and by the
        key of an operation: (float32, 16 bits) seconds. It counts even where the
        directory for measured times cannot be written.
      unmeasurable: the keys of operations that gave no time; not tried again.
      announced: whether the log says that operations are measured between calls.
    """

    spent: float = 0.0
    times: dict[str, dict[str, tuple[float, float]]] = dataclasses.field(
        default_factory=dict
    )
    unmeasurable: set[str] = dataclasses.field(default_factory=set)
    announced: bool = False


@dataclasses.dataclass
class SessionCounts:
    """What `sessions.skipped_counts` knows of this process.

    Attributes:
      begun, read: how many sessions began, and of how many the counts were read.
      open: those that were not closed.
      skipped: updates skipped in sessions of a master, by it and the variable.
      skipped_alone: the same in all sessions without one.
    """

    begun: int = 0
    read: int = 0
    open: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    skipped: dict[tuple[Any, str], int] = dataclasses.field(default_factory=dict)
    skipped_alone: int = 0


def _directory_now() -> str:
    """The working directory, "" where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


PROCESS = Process()
