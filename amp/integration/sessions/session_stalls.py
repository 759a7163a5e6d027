"""`SessionStalls`: warns of a session whose updates are skipped for good, and says why.

Made by `session_starts` for a session that runs a twin, and asked by `session_twins`
before each run. Only a session can read the variables of its graph, so the counts are
read between two of its runs. When a warning is due, one of the next runs also fetches
which of the twin's tensors are finite. All other runs are as they are without it. What
is due is decided in `loss_scaling.stalls`, and no scale is moved here. A session that
stands still is told to `session_twins`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from amp import messages
from amp.integration import fallback
from amp.integration.observing import step_variants
from amp.integration.observing.samples import Sample
from amp.integration.runtime import failures
from amp.integration.sessions import scaler_reads
from amp.integration.sessions.graph_views import GraphViews
from amp.integration.sessions.policy_view import Run
from amp.integration.sessions.run_twins import Make, Starts
from amp.loss_scaling import advice, group, stalls
from amp.loss_scaling.standstill import Standstill

# Seconds between two readings, which take a fifth of a millisecond. As a job may soon
# be over, they are also read before the runs from the 20th to the 40th, and then before
# the 50th, the 62nd and so on.
PERIOD = 0.25


class SessionStalls:
    """The scalers of one session.

    Args:
      session: held weakly.
      views: the twin of its graph.

    Attributes:
      standing: what the user is to be told of a session that stands still, else "".
    """

    def __init__(self, session: Any, views: GraphViews) -> None:
        self.standing = ""
        self._standstills: dict[int, Standstill] = {}  # by the scaler's number
        self._session, self._views = weakref.ref(session), views
        self._due, self._runs, self._run = time.monotonic() + PERIOD, 0, stalls.LIMIT
        self._told: dict[int, set[str]] = {}  # events, by the scaler's number
        self._cases: dict[int, advice.Case] = {}  # to be told with the first tensor
        self._answers: dict[int, int] = {}  # runs that were observed for a case
        # By a run's identity; the run is kept so that no other one gets it.
        self._samples: dict[int, tuple[Run, Sample | None]] = {}
        self._busy = threading.Lock()

    def asks(self) -> bool:
        """Whether the next run is to be made by `call`; reads the counts when due."""
        if self._busy.locked():
            return False  # a reading, which is a run too
        self._runs += 1
        now = time.monotonic()
        if now >= self._due or self._runs >= self._run:
            self._due = now + PERIOD
            young = self._runs < 2 * stalls.LIMIT
            self._run = self._runs + (1 if young else self._runs // 4)
            self.look()
        return bool(self._cases)

    def look(self, *, last: bool = False) -> None:
        """Reads the counts.

        Args:
          last: whether the session is closed, so that no run follows.
        """
        session = self._session()
        if session is None or not self._busy.acquire(blocking=False):
            return
        try:
            read: list[tuple[Any, stalls.Counts]] = []
            read = fallback.attempt_quietly(lambda: _read(session), read)
            for scaler, counts in read:
                seen = self._standstills.setdefault(scaler.number, Standstill())
                self.standing = self.standing or stalls.standing(seen, scaler, counts)
                told = self._told.setdefault(scaler.number, set())
                case = stalls.due(scaler, counts, told, last)
                if case is not None:
                    told.add(case.event)
                    self._cases[scaler.number] = case
        finally:
            self._busy.release()
        if last:
            self._tell(None)

    def call(self, found: Run, run: Make, starts: Starts) -> tuple[bool, Any]:
        """Makes a run of which tensors are observed.

        Args:
          found: the run, in the form that would be made.
          run: makes a run.
          starts: whether TensorFlow can make the kernels of a run.

        Returns:
          Whether the run was made, and if so its outputs.
        """
        sample = self._sample(found)
        if sample is None or not self._busy.acquire(blocking=False):
            return False, None
        longer = dataclasses.replace(found, fetches=[*found.fetches, sample.observed])
        try:
            outputs = run(longer)
        except tf.errors.OpError as e:
            if not failures.gives_way(e, lambda: starts(longer)):
                raise
            self._samples[id(found)] = (found, None)
            return False, None
        finally:
            self._busy.release()
        self._tell(dataclasses.replace(sample, observed=np.asarray(outputs[-1])))
        return True, outputs[:-1]

    def _sample(self, found: Run) -> Sample | None:
        """What may be observed in a run; None if it takes no gradients."""
        known = self._samples.get(id(found))
        if known is None:
            part = fallback.Part("what a session computes is not observed")
            sample = fallback.attempt(part, lambda: self._made(found), lambda: None)
            known = self._samples[id(found)] = (found, sample)
        return known[1]

    def _made(self, found: Run) -> Sample | None:
        twin = self._views.twin
        with self._views.lock:
            roots = [*found.targets, *(tensor.op for tensor in found.fetches)]
            return step_variants.observed_in(twin.graph, roots, twin.user)

    def _tell(self, sample: Sample | None) -> None:
        """Warns of each scaler for which a run has the answer, or none will come."""
        for number, case in list(self._cases.items()):
            finding = None if sample is None else sample.finding(number)
            answers = self._answers[number] = self._answers.get(number, 0) + 1
            over = sample is None or answers >= stalls.ANSWERS
            if finding is not None or over:
                self._cases.pop(number, None)
                self._answers.pop(number, None)
                messages.log("%s", advice.text(case, finding))
                if finding is not None and case.event == "stalled":
                    self.standing = self.standing or finding.unhelped


def _read(session: Any) -> list[tuple[Any, stalls.Counts]]:
    """The counts of the scalers that have taken a step."""
    wanted = []
    for scaler in group.of_graph(session.graph):
        fields = (scaler.stalled, scaler.scale, scaler.skipped_steps)
        wanted.append((scaler, [*fields, *scaler.copies("tally")]))
    try:
        values = scaler_reads.read(session, wanted)
    except (tf.errors.OpError, RuntimeError):
        values = [_read_alone(session, one) for one in wanted]
    found = []
    for (scaler, _), got in zip(wanted, values, strict=True):
        if got is None:
            continue
        stalled, scale, skipped, *tallies = got
        skips = functools.partial(int, skipped)
        counts = stalls.Counts(int(stalled), float(scale), tallies.copy, skips)
        found.append((scaler, counts))
    return found


def _read_alone(session: Any, wanted: tuple[Any, list[Any]]) -> list[Any] | None:
    """As `scaler_reads.read`, for one scaler; None too if it is out of reach."""
    try:
        (found,) = scaler_reads.read(session, [wanted])
    except (tf.errors.OpError, RuntimeError):
        return None
    return found
