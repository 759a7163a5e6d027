"""`Slices`: measures a function's operations in short slices between its calls.

Used by `functions.later_plan`, which plans anew from what was measured. When a slice is
due and how long it is is decided here; no plan and no race is known, and nothing is
measured before the function was called for the second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from amp import messages
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.cost.resolution import Resolution
from amp.integration.measuring import hardware, job_timer
from amp.integration.measuring.operation_timer import ROUNDS
from amp.integration.process import PROCESS

# The part of the time of the function's calls that measuring may take. It costs more
# than it takes: at 3 %, steps of a U-Net took 4 to 5 % longer (2 cores with AMX). Where
# a race has shown predictions to be wrong, another plan may be much faster, and the
# sooner it is known the better: a step of MobileNetV2, 280 ms in float32, took 230 by
# the model's times and 210 by measured ones, which at 1 % it has after ten minutes.
SHARE, SHARE_IN_DOUBT = 0.01, 0.1
# How long a slice is. One operation may take longer: it is measured whole, though in no
# more than so many seconds where it was predicted to take less.
SLICE_SECONDS, MOST_SECONDS = 0.05, 3.0
# What was measured is stored once measuring it took so many times as long as storing.
SAVING = 10
# Every operation is called so often in each precision: once to find out whether it
# runs, in every round, and once more if a call repeats it.
_CALLS = ROUNDS + 2


class Slices:
    """The measuring of one function's operations::

        after each call: the time that measuring may take grows by a part of the call's
        once it pays for a slice, operations are measured, the first first, for
            `SLICE_SECONDS`, or for as long as one operation takes, and stored
        over when all were measured, or the budget of the process is used up

    Args:
      missing: the operations to measure, the most telling first.
      settled: the policy, which has the budget, and the device.
      function: the function's name, for the log.
      clock: gives seconds.

    Attributes:
      in_doubt: whether predictions are known to be wrong, so that from now on
        measuring may take `SHARE_IN_DOUBT` of the time of calls instead of `SHARE`.
    """

    def __init__(
        self,
        missing: Sequence[Instance],
        settled: Resolution,
        function: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._missing, self._settled = list(missing), settled
        self._function, self._clock = function, clock
        self.in_doubt = False
        self._earned = self._spent = self._typical = 0.0
        self._calls = 0
        self._unsaved: dict[str, Times] = {}
        self._since = self._saving = (
            0.0  # seconds measured since, and of, the last save
        )

    @property
    def _share(self) -> float:
        return SHARE_IN_DOUBT if self.in_doubt else SHARE

    @property
    def over(self) -> bool:
        """Whether nothing is left to measure, or no time to do so."""
        return not self._missing or not job_timer.left(self._settled)

    def called(self, seconds: float) -> None:
        """Is told of a call of the function, and how long it took.

        The first does not count: most of its time made the function ready.
        """
        self._calls += 1
        if self._calls > 1:
            self._typical = seconds
            self._earned += self._share * seconds

    def passed(self, calls: int) -> None:
        """Is told of calls that are made before the next question."""
        self._earned += self._share * calls * self._typical

    def allows(self, seconds: float) -> bool:
        """Whether the calls so far pay for so many seconds more."""
        return self._earned - self._spent >= seconds

    def calls_to(self, seconds: float) -> int:
        """The calls that pay for the next slice, or for other work once it is over."""
        owed = seconds if self.over else self._need()
        owed += self._spent - self._earned
        gained = self._share * self._typical
        return max(1, int(owed / gained)) if gained else 1

    def take(self) -> None:
        """Measures a slice, if it is due and nothing else is being measured."""
        if self.over or not self.allows(self._need()):
            return
        if not job_timer.MEASURING.acquire(blocking=False):
            return
        try:
            with hardware.on(self._settled.place):
                self._announce()
                self._measure()
        finally:
            job_timer.MEASURING.release()
        if self.over or self._since > SAVING * self._saving:
            with hardware.on(self._settled.place):
                self._save()

    def _save(self) -> None:
        """Stores what was measured since the last time, for the next run of the job."""
        start, found, self._unsaved = self._clock(), self._unsaved, {}
        if found:
            job_timer.keep(found, 0.0, self._function)
        self._saving, self._since = self._clock() - start, 0.0
        self._spent += self._saving

    def _measure(self) -> None:
        start, before = self._clock(), len(self._missing)
        end = start + SLICE_SECONDS
        while self._missing and self._clock() < end:
            left = job_timer.left(self._settled)
            begun = len(self._missing) < before
            if not left or (begun and self._clock() + self._expected() > end):
                break
            seconds = min(max(MOST_SECONDS, self._expected()), left)
            one = self._missing.pop(0)
            self._unsaved |= job_timer.measured([one], seconds, self._function)
        took = self._clock() - start
        self._spent += took
        self._since += took

    def _expected(self) -> float:
        return _CALLS * sum(self._missing[0].predicted)

    def _need(self) -> float:
        """The seconds of the next slice, by what is predicted."""
        return max(SLICE_SECONDS, self._expected()) if self._missing else 0.0

    def _announce(self) -> None:
        if not PROCESS.measuring.announced:
            PROCESS.measuring.announced = True
            text = "operations are measured between calls, in %.0f to %.0f %% of their"
            text += " time and %.0f s in all (AMP_TUNE_BUDGET)"
            shares = 100 * SHARE, 100 * SHARE_IN_DOUBT
            messages.note(text, *shares, self._budget())

    def _budget(self) -> float:
        return job_timer.left(self._settled) + PROCESS.measuring.spent
