"""The `timer` arguments of `rewrite`: they look up, or measure, how long ops take.

Whoever rewrites without running passes `stored`. A function whose plans race is planned
with `Noted` times, of which `glancing` gets some after its first step, and what is
missing is measured between its later calls (`measuring_slices`, which measures by
`measured` and keeps by `keep`). Where several
workers take a step together `measuring` measures before the first call. Nothing that
goes wrong here stops a job. How an operation is timed is in `operation_timer`, what a
plan makes of it in `cost`.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Container, Mapping, Sequence

from amp import messages
from amp.errors import ProfileError
from amp.graph_rewrite.cost.op_instance import Instance, Timer, Times
from amp.graph_rewrite.cost.pricing import untimed
from amp.graph_rewrite.cost.resolution import Resolution
from amp.integration import fallback
from amp.integration.measuring import hardware, operation_timer, stored_times
from amp.integration.process import PROCESS
from amp.policy import Policy

# A measurement that takes longer is told of.
NOTICED_SECONDS = 2.0
# With less of the budget left no measurement is begun.
LEAST_SECONDS = 0.05
# The part of the time of a function's first step that a glance before its first plan
# may take. A plan by figures that do not fit the machine costs far more: to be checked
# and to be made ready each takes about as long as that step. The part of the budget is
# small, as what a glance finds is too hasty to be kept.
GLANCE, GLANCE_OF_BUDGET = 0.2, 0.25

# Held while measuring, by design: what runs beside a measurement spoils it. Nothing
# else is done meanwhile, and what needs no measurement does not wait for it.
MEASURING = threading.Lock()


def stored(wanted: Sequence[Instance]) -> dict[str, Times]:
    """A timer that measures nothing: returns the times known for this device.

    Args:
      wanted: the operations that a plan asks for.

    Returns:
      By the operation's key, its seconds in (float32, 16 bits), where known.
    """
    known, here = stored_times.load(), _times_here()
    found = {one.key: here.get(one.key) or known.get(one.key) for one in wanted}
    return {key: times for key, times in found.items() if times is not None}


def stored_on(settled: Resolution) -> Timer:
    """`stored` for the device that a policy was settled for.

    It has no times for a device that the user named, which may not be here.
    """
    if settled.named:
        return untimed

    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        with hardware.on(settled.place):
            return stored(wanted)

    return timer


class Noted:
    """A timer that always gives the times that it found when it was first asked.

    So a function that is read anew gets the prices that its plan was made by.

    Args:
      settled: the policy and device that a function is planned for.
      source: the timer that is asked once.

    Attributes:
      wanted: the operations that a plan asked for.
      times: the times that were known.
    """

    def __init__(self, settled: Resolution, source: Timer = stored) -> None:
        self._source: Timer | None = source
        self._place = settled.place
        self.wanted: Sequence[Instance] = ()
        self.times: Mapping[str, Times] = {}

    def __call__(self, wanted: Sequence[Instance]) -> Mapping[str, Times]:
        if self._source is not None:
            with hardware.on(self._place):
                self.wanted, self.times = wanted, self._source(wanted)
            self._source = None
        return self.times

    def missing(self, part: float = 1.0) -> list[Instance]:
        """The operations for which no time is known yet.

        The first of each op come first, as they tell of the others too; then those that
        make up a part of the predicted time, the most telling first.

        Args:
          part: of the predicted time, 0 to 1.
        """
        with hardware.on(self._place):
            known = stored(self.wanted)
        first = _first_of_each_op(self.wanted, known)
        done = known.keys() | {one.key for one in first}
        return first + _missing(_most_telling(self.wanted, part), done)

    def settle(self) -> None:
        """Lets the operations go: their graphs take memory, and times alone do not."""
        self.wanted = ()


def glancing(settled: Resolution, seconds: float, function: str) -> Timer:
    """A timer that gives what is `stored`, and has a glance at what is not.

    Of each op of which no time is stored the most telling instance is measured, within
    a part of the time of the first step: the cost model corrects what it predicts of
    the others by it. These times are not kept, as they are hasty.

    Args:
      settled: the policy and device that a function is planned for.
      seconds: that its first step took; 0 for no glance.
      function: its name, for the log.
    """

    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        known = stored(wanted)
        first = _first_of_each_op(wanted, known)
        most = min(GLANCE * seconds, GLANCE_OF_BUDGET * left(settled))
        if not first or not most or not MEASURING.acquire(blocking=False):
            return known
        try:
            found = _attempted(first, most, function)
        finally:
            MEASURING.release()
        return {**known, **found}

    return timer


def _first_of_each_op(
    wanted: Sequence[Instance], known: Mapping[str, Times]
) -> list[Instance]:
    """The first instance of each op of which none is known."""
    seen = {(one.executor, one.op) for one in wanted if one.key in known}
    first: dict[tuple[str, str], Instance] = {}
    for one in _missing(wanted, known):
        if (one.executor, one.op) not in seen:
            first.setdefault((one.executor, one.op), one)
    return list(first.values())


def _most_telling(wanted: Sequence[Instance], part: float) -> list[Instance]:
    """The first operations, which make up a part of the predicted time of all."""
    enough = part * sum(one.share for one in wanted)
    before = itertools.accumulate((one.share for one in wanted), initial=0.0)
    return [one for one, seen in zip(wanted, before, strict=False) if seen < enough]


def left(settled: Resolution) -> float:
    """The seconds that the process may still spend on measuring.

    They are what is left of `tune_budget`, which all functions of the process share.
    `AMP_TUNE_BUDGET` bounds the budget of every policy.
    """
    if settled.policy is None:
        return 0.0
    everywhere = os.environ.get("AMP_TUNE_BUDGET", "")
    budget = settled.policy.tune_budget
    if everywhere.strip():
        read = Policy.from_env({"AMP_TUNE_BUDGET": everywhere})
        budget = min(budget, read.tune_budget)
    seconds = budget - PROCESS.measuring.spent
    return seconds if seconds >= LEAST_SECONDS else 0.0


def measuring(settled: Resolution, function: str) -> Timer:
    """A timer that returns the times known for this device, and measures the others.

    It measures and stores within what is `left` of the budget.

    Args:
      settled: the policy and device that a function is planned for.
      function: its name, for the log.
    """

    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        with hardware.on(settled.place):
            return look_up(wanted)

    def look_up(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        known = stored(wanted)
        if not _missing(wanted, known) or not left(settled):
            return known
        with MEASURING:
            known = stored(wanted)  # another function may have had them measured
            missing, seconds = _missing(wanted, known), left(settled)
            if not missing or not seconds:
                return known
            start = time.perf_counter()
            _announce(len(missing), seconds, function)
            found = measured(missing, seconds, function)
        keep(found, time.perf_counter() - start, function)
        return {**known, **found}

    return timer


def _missing(wanted: Sequence[Instance], known: Container[str]) -> list[Instance]:
    """The operations without a known time, but those that gave none before."""
    given_up = PROCESS.measuring.unmeasurable
    return [o for o in wanted if o.key not in known and o.key not in given_up]


def measured(
    missing: Sequence[Instance], left: float, function: str
) -> dict[str, Times]:
    """Measures operations within `left` seconds of the budget; returns their times.

    To be called with `MEASURING` held.
    """
    before = PROCESS.measuring.spent
    found = _attempted(missing, left, function)
    if PROCESS.measuring.spent - before < left:
        # There was time for all: what is missing cannot be measured.
        lacking = {one.key for one in missing} - found.keys()
        PROCESS.measuring.unmeasurable.update(lacking)
    _times_here().update(found)
    return found


def _attempted(
    wanted: Sequence[Instance], seconds: float, function: str
) -> dict[str, Times]:
    """Measures operations, with `MEASURING` held, and charges the budget."""
    start = time.perf_counter()
    # Under `strict` too: a plan without a measurement is one from the cost model.
    part = fallback.Part(f"operations of {function} cannot be measured", strict=False)
    found: dict[str, Times] = fallback.attempt(
        part, lambda: dict(operation_timer.measure(wanted, seconds)), lambda: {}
    )
    PROCESS.measuring.spent += time.perf_counter() - start
    return found


def _times_here() -> dict[str, Times]:
    """What this process measured, under the settings that hold now."""
    times: dict[str, Times]
    times = PROCESS.measuring.times.setdefault(hardware.model(), {})
    return times


def _announce(operations: int, seconds: float, function: str) -> None:
    """Says why a function's first call will take longer, before it does."""
    text = "measuring %d operations of %s before its first call, for up to %.0f s"
    messages.note(f"{text} (AMP_TUNE_BUDGET)", operations, _shown(function), seconds)


def _shown(function: str) -> str:
    """A function's name as the user knows it."""
    return re.sub(r"^__inference_|_\d+$", "", function)


def keep(found: Mapping[str, Times], took: float, function: str) -> None:
    """Stores what was measured for later runs; tells of it if it took long."""
    where = _store(found)
    if took > NOTICED_SECONDS:
        text = "measured %d operations of %s in %.1f s; kept in %s"
        messages.note(text, len(found), _shown(function), took, where)


def _store(found: Mapping[str, Times]) -> str:
    if not found:
        return "memory"
    try:
        return str(stored_times.add(found))
    except ProfileError as e:
        messages.log_once("%s", e)
        return "memory"
