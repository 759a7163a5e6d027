"""Warns of scalers whose updates are always skipped, or whose scale is at its floor.

A job whose gradients overflow at every step stands still without an error. Each scaler
counts (`Scaler.stalled`, `Scaler.tally`), inside the step and on the device. Outside
sessions one daemon thread reads the counts now and then, and once more when the process
ends, so no step waits for the host. Before it warns it has asked steps which tensor is
the first that is not finite (`Asked`): some before the warning is due, because the job
may be over soon after. What is due is decided here for sessions too, which read their
counts themselves. Who runs the steps of a job that no scale helps is told of it. No
scale is moved here, and without a scaler nothing runs.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp import messages
from amp.loss_scaling import advice, tally
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LossScale, Where
from amp.loss_scaling.standstill import Standstill

# A scale that starts at 2**15 fits most jobs after 15 halvings.
LIMIT = 20
EARLY = 10  # overflows in a row after which steps are asked
PERIOD = 0.1  # seconds between two readings, of about 40 microseconds each
HURRY = 0.003  # the same up to PERIOD after an update was skipped and nothing said
ENDING = 5.0  # seconds that the end of a process waits for a reading
PATIENCE = 10.0  # seconds that the answer of a step is waited for
ANSWERS = 20  # steps that are asked at most


def count(rule: LossScale, scale: Any, stalled: Any, step: tuple[Any, Where]) -> Any:
    """Returns how many overflows look like a stall, after one gradient call.

    ::

        if stalled >= LIMIT: stalled                    # the warning is given, or due
        elif not finite:     stalled + 1
        elif at the floor:   stalled                    # a good step changes nothing
        else:                0

    Args:
      rule: the settings.
      scale: the scale that the call used, float32, shape ().
      stalled: the count before, int64, shape ().
      step: whether the gradients were finite, and the function to select with.
    """
    finite, where = step
    good = stalled * 0
    if rule.bounds is not None:
        good = where(scale <= rule.bounds[0], stalled, good)
    counted = where(finite, good, stalled + 1)
    return where(stalled >= LIMIT, stalled, counted)


@dataclasses.dataclass(slots=True)
class Asked:
    """What is asked about a scaler; steps that use it add what they observed.

    Attributes:
      until: when the warning is given without an answer, by `time.monotonic`; infinity
        before it is due.
      samples: what steps observed; each has a method `finding`, which takes the
        scaler's number and returns an `advice.Finding` or None.
      begun: whether a step is about to answer; XLA may compile it first.
    """

    until: float = math.inf
    begun: bool = False
    samples: list[Any] = dataclasses.field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether further steps are to answer."""
        return len(self.samples) < ANSWERS


@dataclasses.dataclass(slots=True)
class _Watched:
    """A scaler that is watched.

    Attributes:
      scaler: the scaler.
      told: the events that the user was warned of.
      stalled: its count when it was read last.
      changed: when that had changed, by `time.monotonic`.
      standstill: whether its job stands still.
    """

    scaler: weakref.ref[Any]
    told: set[str] = dataclasses.field(default_factory=set)
    stalled: int = 0
    changed: float = -math.inf
    standstill: Standstill = dataclasses.field(default_factory=Standstill)


class _Watcher:
    """The thread that reads the counts; the first scaler to watch starts it."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.thread: threading.Thread | None = None
        self.process = 0  # that the thread is of
        # Reentrant, because a program's `__del__` may make a scaler at any line.
        self._starting = threading.RLock()

    def start(self) -> None:
        """Starts the thread, unless there is one or the system has none left.

        A fork has none of its parent's threads, and so begins one of its own.
        """
        with self._starting:
            here = self.process == os.getpid()
            if (here and self.thread is not None) or self.ends.is_set():
                return
            thread = threading.Thread(target=self._run, name="amp-stalls", daemon=True)
            with contextlib.suppress(RuntimeError):  # the next scaler tries again
                thread.start()
                if self.thread is None:  # else the parent has asked for it
                    atexit.register(self.stop)
                self.thread, self.process = thread, os.getpid()

    def _run(self) -> None:
        period = PERIOD
        while not self.ends.wait(period):
            period = HURRY if look() else PERIOD

    def stop(self) -> None:
        """Reads a last time. Does nothing in a fork that has no such thread."""
        if os.getpid() != self.process or self.thread is None:
            return
        self.ends.set()
        self.thread.join(ENDING)  # it may be waiting for the answer of a step
        if not self.thread.is_alive():
            look(last=True)


_WATCHER = _Watcher()
_LOOKING = threading.Lock()  # each event is told once, whoever looks


def watch(scaler: Any) -> None:
    """Adds a scaler to those watched; a weak reference is kept."""
    key = id(scaler)
    SCALING.watched[key] = _Watched(weakref.ref(scaler))
    kept: dict[int, Any]
    for kept in (SCALING.asked, SCALING.standing):
        weakref.finalize(scaler, kept.pop, scaler.number, None).atexit = False
    weakref.finalize(scaler, SCALING.watched.pop, key, None).atexit = False
    _WATCHER.start()


def look(*, last: bool = False) -> bool:
    """Reads every count, and warns where that is due.

    Args:
      last: whether the process ends, so that no step will answer any more.

    Returns:
      Whether a scaler skips updates of which nothing was said, so that more may be due
      soon.
    """
    skipping = [_look_at(each, last) for each in list(SCALING.watched.values())]
    return any(skipping)


def _look_at(watched: _Watched, last: bool) -> bool:
    more, says = False, ""
    # A device in an error state is the job's to report.
    with _LOOKING, contextlib.suppress(tf.errors.OpError, RuntimeError):
        more, says = _seen(watched, last)
    if says:
        messages.log("%s", says)  # a program's handlers run, and no lock is held
    return more


def _seen(watched: _Watched, last: bool) -> tuple[bool, str]:
    """Whether more may be due soon of a scaler, and what the user is told of it now."""
    scaler, told = watched.scaler(), watched.told
    if SCALING.paused or scaler is None:
        return False, ""
    counts = _counts(scaler)
    if scaler.number not in SCALING.standing:
        _stands(scaler, standing(watched.standstill, scaler, counts))
    case = due(scaler, counts, told, last)
    if case is None:
        more = not told and _is_skipping(watched, scaler, counts.stalled, last)
        return more, ""
    ready, finding = _answer(scaler, last)
    if not ready:
        return True, ""
    told.add(case.event)
    if finding is not None and case.event == "stalled":
        _stands(scaler, finding.unhelped)
    return False, advice.text(case, finding)


def _stands(scaler: Any, says: str) -> None:
    """Has all functions come by, if the job of a scaler stands still.

    Args:
      scaler: whose job it is.
      says: what the user is to be told; "" if it does not.
    """
    if says:
        SCALING.standing[scaler.number] = weakref.ref(scaler), says
        if SCALING.ask is not None:
            SCALING.ask()


def standing(seen: Standstill, scaler: Any, counts: Counts) -> str:
    """What the user is to be told of a job that stands still, "" of one that does not.

    Args:
      seen: what was seen of its scaler.
      scaler: whose counts these are.
      counts: what was read.
    """
    if counts.stalled < LIMIT:
        return ""

    def read() -> tally.Tally:
        return tally.read(counts.tallies(), scaler.names)

    return seen.reached(scaler.settings, counts.scale, read)


def _is_skipping(watched: _Watched, scaler: Any, stalled: int, last: bool) -> bool:
    """Whether updates are skipped, of which it is early to warn; steps may be asked.

    ::

        changed just now:          more is due soon; from EARLY on steps are asked
        not changed for PATIENCE:  no step is taken any more, and none is asked
        below EARLY again:         the job goes on, and no step is asked
    """
    now = time.monotonic()
    if stalled != watched.stalled:
        watched.stalled, watched.changed = stalled, now
    idle = now - watched.changed
    asked = SCALING.asked.get(scaler.number)
    if asked is None:
        if stalled >= EARLY and idle < PERIOD and not last:
            _ask(scaler)
    elif asked.until == math.inf:
        over = idle >= PATIENCE and not asked.begun
        if stalled < EARLY or over:
            SCALING.asked.pop(scaler.number, None)
    return stalled > 0 and idle < PERIOD


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Has no count read while scalers hold what is only tried out."""
    own = object()
    try:
        with _LOOKING:  # a reading that has begun ends first
            SCALING.paused.add(own)
        yield
    finally:
        SCALING.paused.discard(own)


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What was read of a scaler.

    Attributes:
      stalled, scale: its variables of these names.
      tallies, skipped: read the copies of `Scaler.tally`, and `Scaler.skipped_steps`;
        called only where a warning is due.
    """

    stalled: int
    scale: float
    tallies: Callable[[], list[Any]]
    skipped: Callable[[], int]


def _counts(scaler: Any) -> Counts:
    stalled = int(scaler.copies("stalled")[0].numpy())
    scale = float(scaler.copies("scale")[0].numpy())
    tallies = functools.partial(_values, scaler.copies("tally"))
    skipped = functools.partial(_skipped, scaler)
    return Counts(stalled, scale, tallies, skipped)


def _skipped(scaler: Any) -> int:
    return int(scaler.copies("skipped_steps")[0].numpy())


def _values(variables: Iterable[Any]) -> list[Any]:
    return [variable.numpy() for variable in variables]


def due(scaler: Any, counts: Counts, told: set[str], last: bool) -> advice.Case | None:
    """What the user is to be warned of, None for nothing new.

    Args:
      scaler: whose counts these are.
      counts: what was read.
      told: the events that the user was warned of.
      last: whether no step follows any more.
    """
    floor = scaler.settings.bounds and scaler.settings.bounds[0]
    at_floor = bool(floor) and counts.scale <= floor < scaler.settings.initial
    event: advice.Event
    if counts.stalled >= LIMIT:
        event = "stalled"
    elif at_floor:
        event = "floor"
    else:
        event = "never"
    # What is said of a stall, or of the floor, need not be said again of the other.
    if (
        event in told
        or (told and event != "stalled")
        or (event == "never" and not last)
    ):
        return None
    found = tally.read(counts.tallies(), scaler.names)
    if event == "never" and not found.never_finite:
        return None
    times = found.calls if event == "never" else LIMIT
    names = found.names or scaler.names
    said = f"the loss scale is {counts.scale:g}"
    if at_floor and event != "floor":
        said += ", its minimum"
    skipped = counts.skipped() > 0
    return advice.Case(
        event, scaler.name, names, times, said, skipped, in_session=scaler.in_session
    )


def _ask(scaler: Any) -> Asked | None:
    """Has the next steps that use a scaler answer; None where no function can."""
    if SCALING.ask is None:
        return None
    asked = SCALING.asked[scaler.number] = Asked()
    if SCALING.ask():
        return asked
    SCALING.asked.pop(scaler.number, None)
    return None


def _answer(scaler: Any, last: bool) -> tuple[bool, advice.Finding | None]:
    """Whether a warning that is due may be given, and what steps found out for it."""
    asked = SCALING.asked.get(scaler.number) or (None if last else _ask(scaler))
    if asked is None:
        return True, None
    now = time.monotonic()
    asked.until = min(asked.until, now + PATIENCE)
    found = (sample.finding(scaler.number) for sample in list(asked.samples))
    finding = next((each for each in found if each is not None), None)
    late = not asked.begun and now >= asked.until
    over = last or late or not asked.open
    if finding is None and not over:
        return False, None
    SCALING.asked.pop(scaler.number, None)
    return True, finding
