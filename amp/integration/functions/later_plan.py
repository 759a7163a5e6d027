"""`LaterPlan`: plans a function anew once its operations were measured, while it runs.

Used by `between_calls` between the calls of a function. The first plans are made from
the times that are stored and the model's; once the operations that take most of the
time were measured, the cheapest plan is found again and, if it is another, races. When
is measured is `measuring_slices`' to say, and who wins that of `contest`; no function
is called here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Mapping

from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.outcomes import TrialOutcome
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.contests.contest import Contest
from amp.integration.contests.entrants import MEASURED
from amp.integration.contests.plan_store import Record
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.measuring import job_timer
from amp.integration.measuring.job_timer import Noted
from amp.integration.measuring.measuring_slices import Slices

# Measured are the first of each op, and those that make up this part of the predicted
# time of all that are worth measuring: what is found of them corrects what is predicted
# of the others, and the many small ones take as long to measure as the few large ones.
COVERED = 0.75
# A plan whose predicted gain over the one that runs is less than this does not race: a
# race takes plans for equal whose times differ by less.
LEAST_GAIN = 0.02
# If a race finds a gain over float32 that differs from the predicted one by more than
# this factor, operations are measured sooner. In benchmarks on a CPU with AMX ten of
# thirteen models ended within it.
DOUBTFUL = 1.2
# After so many calls a plan that could not race yet asks again.
_PATIENCE = 20


def begun(plans: FunctionPlans, known: Record) -> LaterPlan | None:
    """Begins the measuring of a function that was planned by `Noted` times.

    Args:
      plans: of the function; none was let go of yet.
      known: what an earlier run of the job found out.

    Returns:
      None if nothing is to be measured and no times are new since it was planned.
    """
    prepared = plans.prepared
    if prepared is None or not isinstance(prepared.timer, Noted):
        return None
    noted = prepared.timer
    now = Noted(prepared.settled)(noted.wanted)
    missing = noted.missing(COVERED)
    if not job_timer.left(prepared.settled):
        missing = []
    solved = {named(noted.times), known.tried}
    if not missing and named(now) in solved:
        noted.settle()
        return None
    slices = Slices(missing, prepared.settled, prepared.given.main.name)
    return LaterPlan(prepared, slices, solved, plans.making)


def newer_prices(plans: FunctionPlans) -> Callable[[FunctionPlans], None] | None:
    """What has reports predict by the newest times, of a plan that was made by others.

    Args:
      plans: of a function whose winner is known; none was let go of yet.

    Returns:
      To be called once the function's first call is over, with its plans by then; None
      if no time is new.
    """
    prepared = plans.prepared
    if prepared is None or not isinstance(prepared.timer, Noted):
        return None
    noted, given = prepared.timer.times, prepared
    times = {**noted, **Noted(prepared.settled)(prepared.timer.wanted)}
    if times == noted:
        return None
    return lambda now: now.tell_prices(given.repriced(lambda _: times))


def as_next_run(winner: str, outcome: TrialOutcome) -> tuple[str, TrialOutcome]:
    """The winner's name, and the outcome, as the next run of the job will call them.

    With all times stored, the plan that was made later is the cheapest from the start.
    """
    if winner != MEASURED.name:
        return winner, outcome
    others = (plan for plan in outcome.plans if plan.name != CUT.name)
    plans = tuple(
        dataclasses.replace(plan, name=CUT.name) if plan.name == winner else plan
        for plan in others
    )
    return CUT.name, dataclasses.replace(outcome, plans=plans)


def named(times: Mapping[str, Times]) -> str:
    """A name for measured times: another one if any of them is another."""
    text = "\n".join(f"{key} {times[key]}" for key in sorted(times))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class LaterPlan:
    """One function's measuring, and the plan that comes of it::

        between calls: a slice of measuring, if the calls so far pay for one
        once all is measured, and the calls pay for it: the cheapest plan by these times
          another one than those made, and predicted to be clearly faster than the one
            that runs: it races
        over when it has raced, or is not to race

    Args:
      prepared: the function, analyzed and priced.
      slices: its measuring.
      solved: names of the times by which plans were made.
      planning: the seconds that planning it is expected to take.

    Attributes:
      over: whether nothing more is to come.
      tried: the name of the times by which the function was planned last.
    """

    def __init__(
        self, prepared: Prepared, slices: Slices, solved: set[str], planning: float
    ) -> None:
        self.over, self.tried = False, ""
        self._prepared: Prepared | None = prepared
        self._slices, self._solved, self._planning = slices, solved, planning
        # Of a plan that is to race, and of the one that runs.
        self._seconds: tuple[float, float] | None = None
        self._races = False
        self._busy = threading.Lock()

    def called(self, seconds: float) -> None:
        """Is told of a call of the function, and how long it took."""
        self._slices.called(seconds)

    def passed(self, calls: int) -> None:
        """Is told of calls that are made before the next question."""
        self._slices.passed(calls)

    @property
    def calls_left(self) -> int:
        """The calls until there is something to do."""
        if self._seconds is not None:
            return _PATIENCE
        return self._slices.calls_to(self._planning)

    @property
    def hurries(self) -> bool:
        """Whether measuring takes more of the time, as predictions were wrong."""
        return self._slices.in_doubt and not self.over and self._seconds is None

    def go_on(self, plans: FunctionPlans, contest: Contest) -> None:
        """Does what is due between two calls; another thread meanwhile does nothing."""
        idle = self.over or self._races
        if idle or not self._busy.acquire(blocking=False):
            return
        try:
            if self._seconds is None and not self._slices.over:
                self._slices.in_doubt = contest.doubt > DOUBTFUL
                self._slices.take()
            elif self._seconds is None and self._slices.allows(self._planning):
                self._plan(plans, contest)
            if self._seconds is not None:
                self._races = contest.challenge(MEASURED.name, *self._seconds)
        finally:
            self._busy.release()

    def stop(self) -> None:
        """Has nothing more come of it."""
        self.over = True

    def raced(self) -> None:
        """Is told of the end of a race."""
        self.over = self.over or self._races

    def _plan(self, plans: FunctionPlans, contest: Contest) -> None:
        """Finds the cheapest plan by what was measured, and whether it is to race.

        What is interrupted begins anew after the next call.
        """
        before = self._prepared
        assert before is not None
        assert isinstance(before.timer, Noted)
        timer = Noted(before.settled)
        times = timer(before.timer.wanted)
        self.tried = named(times)
        if self.tried not in self._solved:
            prepared = before.repriced(timer)
            plans.tell_prices(prepared)
            self._seconds = _predicted(prepared, plans, contest.favourite)
            if self._seconds is not None:
                plans.reprice(prepared)
        self.over, self._prepared = self._seconds is None, None
        timer.settle()
        before.timer.settle()


def _predicted(
    prepared: Prepared, plans: FunctionPlans, running: str
) -> tuple[float, float] | None:
    """The predicted seconds of the cheapest plan, and of the one that runs.

    None if those are not clearly fewer, or if that plan was made already.
    """
    found = prepared.foreseen(plans.nominee(MEASURED.name))
    if not any(found.low.values()) or plans.was_made(found.low):
        return None
    made, now = plans.known(running), found.given
    if isinstance(made, Made):
        now = prepared.foreseen(prepared.holding(made.low)).seconds
    clear = now > 0 and found.seconds <= (1 - LEAST_GAIN) * now
    return (found.seconds, now) if clear else None
