"""`Checks`: when which function is compared with float32.

Used by `function_checks`; `function_twins` makes another twin if the one that was
checked is at fault. What is compared is in `accuracy_check`, and no gradient is
computed here.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.integration import fallback
from amp.integration.observing.accuracy_check import AccuracyCheck, Checked
from amp.integration.observing.value_copies import NoneTaken, Step
from amp.integration.runtime.unasked import Due

AGAIN = 500  # calls until a second check, of weights that have been trained,
FURTHER = 4  # and so many times as many until each further one
# What a step was computed from is kept of so many functions that were called once, the
# newest: a loop over batches of all lengths has a function for each. Of others it is
# recorded at the next call.
BATCHES = 8
MOST = 32  # calls in a row that are recorded until one of them takes a step


@dataclasses.dataclass(slots=True)
class _Pending:
    """The check of one function.

    Attributes:
      make: makes it; raises NotRepeatable where it cannot be made.
      due: number of the call at which it is made.
      calls: how many there were.
      ended: how often the data ended at the call that was to be recorded.
      recorded: how many calls in a row were recorded.
      check: once it was made.
      busy: held while a thread makes a step of it.
    """

    make: Callable[[], AccuracyCheck]
    due: int
    calls: int = 0
    ended: int = 0
    recorded: int = 0
    check: AccuracyCheck | None = None
    busy: Any = dataclasses.field(default_factory=threading.Lock)

    def passed(self, calls: int) -> None:
        """Is told of calls that are made without a question."""
        self.calls += calls


class Refused(Exception):
    """TensorFlow could not start a function, and nothing of it has run."""


class Checks:
    """The checks that are still to be made under one policy, by function.

    A check takes two calls. The first runs the step in float32 and records what it was
    computed from. At the next, before the step, values are compared. It is over once
    its result is taken in: what is interrupted before is made again. If the call that
    was recorded took no step, as of a loop that trains now and then, the next ones are
    recorded; after `MOST` of them it waits for `FURTHER` times as many calls.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._pending: dict[bytes, _Pending] = {}
        self._holding: dict[bytes, None] = {}  # those that keep a step, the newest last

    def plan(self, name: bytes, make: Callable[[], AccuracyCheck], due: int) -> None:
        """Has a function checked from its call number `due` (from 1) on."""
        self._pending[name] = _Pending(make, due)

    def waits(self, name: bytes) -> bool:
        """Whether a function is still to be checked."""
        return name in self._pending

    def due(self, name: bytes) -> Due:
        """When a function is checked; calls without a question count too."""
        pending = self._pending.get(name)
        if pending is None:
            return Due(None, lambda calls: None)
        return Due(max(0, pending.due - 1 - pending.calls), pending.passed)

    def forget(self, name: bytes) -> None:
        """Drops the check of a function that is going; takes no lock."""
        self._pending.pop(name, None)

    def call(
        self, name: bytes, call: Step, take_in: Callable[[Checked], None]
    ) -> tuple[bool, Any]:
        """Makes what a call of a function has to do for its check.

        Another thread that calls meanwhile makes nothing of it.

        Args:
          name: the function's.
          call: the call that the user made; `record` may raise `Refused`.
          take_in: is given the result of the check if this call ends it.

        Returns:
          Whether the step was made; if so its results.
        """
        pending = self._pending.get(name)
        if pending is None or not pending.busy.acquire(blocking=False):
            return False, None
        try:
            pending.calls += 1
            if pending.calls < pending.due:
                return False, None
            found = self._found(name, pending)
            if isinstance(found, AccuracyCheck):
                try:
                    pending.recorded += 1
                    outputs = found.first(call)
                    self._hold(name)
                    return True, outputs
                except tf.errors.OutOfRangeError:  # of data; some calls all end so
                    pending.ended += 1
                    if pending.ended > 1:
                        self._pending.pop(name, None)
                    raise
                except Refused:
                    pass
            elif found is not None:
                take_in(found)
            if self._pending.get(name) is pending:  # none was planned in its place
                if isinstance(found, Checked) and found.untaken:
                    pending.due, pending.recorded = FURTHER * pending.calls, 0
                else:
                    self.forget(name)
            return False, None
        finally:
            pending.busy.release()

    def _hold(self, name: bytes) -> None:
        """Notes that a function keeps a step, and drops those of the oldest others.

        What is dropped is recorded anew at the next call.
        """
        self._holding.pop(name, None)
        self._holding[name] = None
        for other in [*self._holding][:-BATCHES]:
            self._holding.pop(other, None)
            pending = self._pending.get(other)
            if pending is not None and pending.busy.acquire(blocking=False):
                try:
                    if pending.check is not None:
                        pending.check.drop()
                    pending.check = None
                finally:
                    pending.busy.release()

    def _found(self, name: bytes, pending: _Pending) -> AccuracyCheck | Checked | None:
        """The check, if no step was recorded, else its result; None for neither."""
        if pending.check is None:
            made = self._attempt(name, pending.make)
            if not isinstance(made, AccuracyCheck):
                return made
            pending.check = made
        check = pending.check
        if not check.has_step and pending.recorded < MOST:
            return check
        self._holding.pop(name, None)
        try:
            return self._attempt(name, check.compare)
        finally:  # what is interrupted is compared at the next call
            pending.check = None

    def _attempt(
        self, name: bytes, ours: Callable[[], AccuracyCheck | Checked]
    ) -> AccuracyCheck | Checked | None:
        says = f"function {name.decode()} is not compared with float32"
        part = fallback.Part(says, self._strict)

        def attempted() -> AccuracyCheck | Checked | None:
            try:
                return ours()
            except NotRepeatable as e:
                text, untaken = f"not checked: {e}", isinstance(e, NoneTaken)
                return Checked(AccuracyOutcome(text), untaken=untaken)

        return fallback.attempt(part, attempted, lambda: None)
