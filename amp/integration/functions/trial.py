"""`Trial`: the first calls of a function alternate between original and twin, timed.

Who runs next, a clock, and who was faster; nothing of how a function is called or made.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.framework import config as config_lib

from amp.graph_rewrite.report import Report, TrialOutcome
from amp.policy import Policy

LEAST = 3  # calls timed of each before anything is said
MOST = 50  # calls of each, besides their first ones
# Standard errors, of a normal distribution one-sided: 5 % for what the cost model
# predicted anyway; 1 % against it, and 5 % when no more calls are to be timed.
AGREES, CONTRADICTS, LAST = 1.645, 2.326, 1.645

UNDER_WAY = "under way: calls alternate until the faster is known"


# A prediction is not tried if this share of it was measured and this is its gain: to
# try takes the memory of the original, which may not be there. That each was measured
# alone matters less to a ratio than to a time, and the gain leaves room for it.
MEASURED, CLEAR = 0.8, 1.3


def why_not(policy: Policy, compiled: bool, report: Report) -> str:
    """Why a twin is not tried against its original, "" if it is.

    Args:
      policy: settled.
      compiled: whether XLA compiles any of the function.
      report: on the twin.
    """
    if policy.trial is False:
        return "trial=False, AMP_TRIAL=0"
    if policy.emulate:
        return "emulation is not meant to be faster"
    if policy.trial is True:
        return ""
    if policy.assignment == "all":
        return "assignment='all' is not chosen for speed"
    if compiled or tf.config.optimizer.get_jit():
        return "XLA compiles the function, and would have to twice"
    if config_lib.is_op_determinism_enabled():
        return "operations are to be deterministic"
    if _in_cluster(context_lib.context()):
        return "several workers take a step together, and none is timed alone"
    clear = report.seconds32 >= CLEAR * (report.seconds16 + report.fused_seconds)
    if clear and report.measured_share >= MEASURED:
        return "its operations were measured, and the gain is clear"
    return ""


def _in_cluster(context: Any) -> bool:
    collective = getattr(context, "_collective_ops_server_def", None)
    return collective is not None or context.get_server_def() is not None


def twin_is_faster(
    original: Sequence[float], twin: Sequence[float], *, last: bool = False
) -> bool | None:
    """Whether the twin is faster, None while that is not known.

    The rank-sum test (Mann and Whitney, 1947) on whole calls, one-sided: a slow call is
    one slow call however slow, and no distribution of the noise is assumed. What the
    cost model predicted is evidence too, so it takes less to agree with it than to
    contradict it.

    Args:
      original, twin: seconds of single calls, taken in turns.
      last: no more calls will be timed: in doubt it is as predicted.
    """
    if min(len(original), len(twin)) < LEAST:
        return True if last else None
    if _evidence(twin, original) >= AGREES:
        return True
    if _evidence(original, twin) >= (LAST if last else CONTRADICTS):
        return False
    return True if last else None


def _evidence(shorter: Sequence[float], longer: Sequence[float]) -> float:
    """Standard errors by which U exceeds what equal distributions would give.

    The normal approximation with continuity correction; three of each, all apart, are
    1.75 (exactly: 1 in 20), five of each 2.51 (1 in 252).
    """
    wins = sum((a < b) + (a == b) / 2 for a in shorter for b in longer)
    pairs = len(shorter) * len(longer)
    error = math.sqrt(pairs * (len(shorter) + len(longer) + 1) / 12)
    return (wins - pairs / 2 - 0.5) / error


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    name: bytes
    number: int
    counted: bool


class Trial:
    """Calls an original and its twin by turns until the faster is known.

        call 1: the twin; call 2: the original; then pairs, each in random order
        a call's time counts if the function has run before, and no other call of this
            trial overlapped
        after each call: ended if twin_is_faster says which, or MOST pairs were called

    Random order, so that no pattern of the user's (an update every fourth step) falls
    on one of the two; pairs, so that drift falls on both. Any number of threads may
    call at once, and none waits for another.

    Args:
      original, twin: the names.
      ended: is given the trial and its outcome, once.
      clock: seconds, read when devices have done all that was asked of them.
    """

    def __init__(
        self,
        original: bytes,
        twin: bytes,
        ended: Callable[[Trial, TrialOutcome], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._original, self._twin = original, twin
        self._ended = ended
        self._clock = clock or synchronised_clock
        self._order = _order()
        # Reentrant: the garbage collector may run a program's `__del__`, which may call
        # the function, while it is held.
        self._lock = threading.RLock()
        self._started = self._running = 0
        self._times: dict[bytes, list[float]] = collections.defaultdict(list)
        self._warm: set[bytes] = set()  # have run once
        self._outcome: TrialOutcome | None = None

    def call(self, call: Callable[[bytes], Any]) -> Any:
        """Calls whichever has its turn, once, and returns what it returns."""
        turn = self._begin()
        seconds = None
        try:
            start = self._clock()
            outputs = call(turn.name)
            seconds = self._clock() - start
        finally:
            outcome = self._end(turn, seconds)
        if outcome is not None:
            self._ended(self, outcome)
        return outputs

    def _begin(self) -> _Turn:
        with self._lock:
            self._started += 1
            self._running += 1
            if self._outcome is not None:
                return _Turn(self._name(self._outcome.twin), self._started, False)
            name = self._name(next(self._order))
            counted = self._running == 1 and name in self._warm
            return _Turn(name, self._started, counted)

    def _name(self, twin: bool) -> bytes:
        return self._twin if twin else self._original

    def _end(self, turn: _Turn, seconds: float | None) -> TrialOutcome | None:
        """Notes a call's time, None for one that raised; the outcome if this is it."""
        with self._lock:
            self._running -= 1
            if seconds is None or self._outcome is not None:
                return None
            self._warm.add(turn.name)
            if turn.counted and turn.number == self._started:
                self._times[turn.name].append(seconds)
            self._outcome = self._judged()
            return self._outcome

    def _judged(self) -> TrialOutcome | None:
        original, twin = self._times[self._original], self._times[self._twin]
        last = self._started >= 2 * (1 + MOST)
        faster = twin_is_faster(original, twin, last=last)
        if faster is None:
            return None
        if min(len(original), len(twin)) < LEAST:
            text = "ended as predicted: too few calls could be timed alone"
        elif twin_is_faster(original, twin) is None:
            text = "ended without certainty: the two are about equally fast"
        else:
            text = f"ended: {'16 bits are' if faster else 'float32 is'} faster"
        return TrialOutcome(
            twin=faster,
            seconds32=statistics.median(original) if original else None,
            seconds16=statistics.median(twin) if twin else None,
            timed=len(original) + len(twin),
            text=text,
        )


def _order() -> Iterator[bool]:
    """Whether it is the twin's turn, call after call; the same in every trial."""
    yield True
    yield False
    draw = random.Random(0)
    while True:
        first = draw.random() < 0.5
        yield first
        yield not first


def synchronised_clock() -> float:
    """Seconds, read once every device has done what it was asked to.

    On a CPU a call returns when it is done, but not under asynchronous execution.
    """
    tf.test.experimental.sync_devices()
    return time.perf_counter()
