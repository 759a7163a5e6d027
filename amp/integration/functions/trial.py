"""`Trial`: times the first calls of a function, by turns its original and its twin.

Used by `twins`, which calls the faster from then on. Here it is decided whose turn it
is and which is faster; how a function is called or made is not known.
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
from tensorflow.python.framework import config as config_lib

from amp.graph_rewrite.report import TrialOutcome
from amp.integration.functions import clusters
from amp.policy import Policy

LEAST = 3  # timed calls of each before there is a verdict
MOST = 50  # calls of each, besides their first ones
# Standard errors of a one-sided test: 5 % for a verdict that the cost model predicted;
# 1 % for the opposite one, and 5 % for it once no more calls are timed.
AGREES, CONTRADICTS, LAST = 1.645, 2.326, 1.645

UNDER_WAY = "under way: calls alternate until the faster is known"


def why_not(policy: Policy, compiled: bool) -> str:
    """Returns the reason why a function gets no trial, "" if it gets one.

    No prediction is so clear that it needs none: a step predicted at 1.48, nearly all
    of it from measured times, ran at 0.90 to 1.08.

    Args:
      policy: with every "auto" settled.
      compiled: whether XLA compiles any part of the function.
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
    if clusters.is_in_one():
        return "several workers take a step together, and none is timed alone"
    return ""


def twin_is_faster(
    original: Sequence[float], twin: Sequence[float], *, last: bool = False
) -> bool | None:
    """Whether the twin is faster; None if more calls are needed to tell.

    A one-sided rank-sum test (Mann and Whitney, 1947). It compares the order of the
    times only, so one very slow call counts no more than any slow call, and no
    distribution of the noise is assumed. A twin exists only if the cost model predicts
    that it is faster; therefore less evidence is asked for that than for the opposite.

    Args:
      original, twin: seconds of single calls.
      last: whether no more calls will be timed; then in doubt the prediction holds.
    """
    if min(len(original), len(twin)) < LEAST:
        return True if last else None
    if _evidence(twin, original) >= AGREES:
        return True
    if _evidence(original, twin) >= (LAST if last else CONTRADICTS):
        return False
    return True if last else None


def _evidence(shorter: Sequence[float], longer: Sequence[float]) -> float:
    """Standard errors by which the statistic U exceeds its mean for equal times.

    By the normal approximation with continuity correction. If all of `shorter` are
    shorter than all of `longer`, three of each give 1.75 (by chance 1 in 20), and five
    of each 2.51 (1 in 252).
    """
    wins = sum((a < b) + (a == b) / 2 for a in shorter for b in longer)
    pairs = len(shorter) * len(longer)
    error = math.sqrt(pairs * (len(shorter) + len(longer) + 1) / 12)
    return (wins - pairs / 2 - 0.5) / error


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """One call of a trial.

    Attributes:
      name: the function to call, the original's or the twin's.
      number: how many calls of this trial had begun, this one included.
      counted: whether its time counts, provided that no other call begins meanwhile.
    """

    name: bytes
    number: int
    counted: bool


class Trial:
    """Calls an original and its twin by turns until it is known which is faster::

        call 1: the twin; call 2: the original; then pairs, each in random order
        a call's time counts if the function has run before, and no other call of this
            trial overlapped
        after each call: ended if twin_is_faster says which, or MOST pairs were called

    The order in a pair is random, so that a pattern in the user's program (an update at
    every fourth step, say) does not always fall on the same one of the two. A machine
    that becomes slower or faster affects both members of a pair alike. Threads may call
    at the same time, and none waits for another.

    Args:
      original, twin: the names of the two functions.
      ended: called once, with the trial and its outcome.
      clock: returns seconds, after the devices have finished their work.
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
        """Calls the function whose turn it is, and returns its outputs.

        Args:
          call: calls the function of a name, the original's or the twin's.
        """
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
        """Records the end of a call.

        Args:
          turn: of the call.
          seconds: the time that it took, None if it raised.

        Returns:
          The trial's outcome if this call decided it, else None.
        """
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
    """Yields for each call whether it is the twin's turn; the same in every trial.

    The twin, the original, then pairs of both in random order.
    """
    yield True
    yield False
    draw = random.Random(0)
    while True:
        first = draw.random() < 0.5
        yield first
        yield not first


def synchronised_clock() -> float:
    """The clock in seconds, read after every device has finished its work.

    A call on a GPU, or under asynchronous execution, returns before it is done.
    """
    tf.test.experimental.sync_devices()
    return time.perf_counter()
