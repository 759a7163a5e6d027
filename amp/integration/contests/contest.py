"""`Contest`: the race between the plans of one function, and the checks of its winner.

Used by `function_twins`, and by `sessions` for each run of a session; they record the
outcomes. When there is a race or a check is decided here; how it goes is in `race`, and
nothing is called.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from amp.graph_rewrite.outcomes import PlanSize, RacedPlan, TrialOutcome
from amp.graph_rewrite.report import Report
from amp.integration import tensor_pool
from amp.integration.contests import plan_store
from amp.integration.contests.check_schedule import CheckSchedule
from amp.integration.contests.kept_race import KeptRace
from amp.integration.contests.plan_store import Record
from amp.integration.contests.race_costs import RaceCosts
from amp.integration.racing import race_budget, race_rules
from amp.integration.racing.race import Listener, Race
from amp.integration.racing.race_log import FLOAT32, Log, Setup

UNDER_WAY = "under way: calls alternate until the fastest is known"
KNOWN = "none: won in an earlier run of the job, and is checked now and then"


# Told of the end of a race or check.
_Ended: TypeAlias = "Callable[[Contest, TrialOutcome | None], None]"


class Plans(Protocol):
    """What a contest asks of the plans that race. `FunctionPlans` is one."""

    @property
    def setup(self) -> Setup:
        """What is known of a race between them, apart from earlier ones."""

    def report(self, plan: str) -> Report:
        """The report on a plan that was made."""

    def settle(self) -> None:
        """Is told that there will be no further plan."""

    def released(self, plan: str) -> None:
        """Is told that a plan is out and none of its calls is running any more."""


class Contest:
    """The state of one function's race::

        a race between the plans; its winner runs from then on
        float32 won: nothing more
        a plan won: it runs alone for a number of calls; then there is a check, a short
            race against float32; and so on until float32 wins one
        float32 was not tried, as compiling it would have cost too much: the first check
            is when that is 2 % of the time that the job then has taken
        a plan was made later: it enters the race; once that has ended, it races the
            winner, be that float32 or a plan

    Args:
      plans: of the function.
      ended: told of the end of a race or check, with its outcome if there is another
        winner than before, or float32 was tried for the first time, else None; where
        Ctrl-C interrupts it, once more.
      advanced: told now and then what a later run could go on from, if this one ends
        before the race does.
      clock: as of `Race`.

    Attributes:
      winner: the name of the plan that runs, "" while that is not known.
      favourite: the same, or the plan that was predicted to be the fastest.
      outcome: of the race between all plans, once it has ended.
      costs: of its races.
    """

    def __init__(
        self,
        plans: Plans,
        ended: _Ended,
        advanced: Callable[[Mapping[str, Any]], None] = lambda kept: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.winner = self.favourite = ""
        self.outcome: TrialOutcome | None = None
        self.costs = RaceCosts()
        self._plans, self._tell, self._keep = plans, ended, advanced
        self._clock = clock
        self._race: Race | None = None
        self._over: Race | None = None  # one that ended, until it has told all
        self._news: TrialOutcome | None = None  # of its end
        self._doubt = 1.0  # of the race between all plans, once it has ended
        self._challenged = False  # whether a plan made later races the winner
        self._later = ""  # a plan that was made later than the others
        self._checks = CheckSchedule()
        self._stopped = False
        self._sizes: dict[str, PlanSize] = {}
        self._lock = threading.RLock()

    def begin(
        self,
        favourite: str,
        others: Sequence[str],
        kept: Mapping[str, Any] | None = None,
        *,
        stepped: bool = False,
    ) -> None:
        """Begins the race, or goes on with that of an earlier run.

        Args:
          favourite: the plan that is predicted to be the fastest; it was made.
          others: the names of further ones.
          kept: what an earlier run left of a race between the same plans, if anything.
          stepped: whether a call was made in float32 before the race.
        """
        self.favourite, report = favourite, self._plans.report(favourite)
        self._note_size(favourite, report)
        predicted = {favourite: report.seconds16, FLOAT32: report.seconds32}
        log = Log(predicted, dataclasses.replace(self._plans.setup, stepped=stepped))
        beaten: Sequence[str] = kept["slower"] if kept else ()
        names = [favourite, FLOAT32, *(name for name in others if name not in beaten)]
        if kept:
            log.go_on_from(kept)
        listener = Listener(self._ended, self._released, self._advanced)
        self._race = Race(names, race_rules.RACE, log, listener, self._clock)

    def begin_known(self, known: Record, *, stepped: bool = False) -> None:
        """Begins without a race, with the winner of an earlier run.

        Args:
          known: what that run stored; the winner's plan was made.
          stepped: whether a call was made in float32 in this run; if not, there is none
            before the winner takes another time than in that one.
        """
        if stepped:
            tensor_pool.trim()  # of what float32 needed
        self.winner = self.favourite = known.winner
        self.costs.ready = known.ready
        self.outcome = _as_known(known)
        self._checks.recall(known, stepped=stepped)

    def _advanced(self, race: Race) -> None:
        if self._race is race and not self._stopped:
            self._keep({**race.log.kept(), "slower": race.slower})

    def challenge(self, plan: str, seconds: float, running: float) -> bool:
        """Has a plan race that was made later than the others.

        Args:
          plan: its name.
          seconds: its predicted time.
          running: that of `favourite`, by the same prices.

        Returns:
          Whether it does; it does not while a winner is being checked, or before the
          job's steps pay for its first call.
        """
        with self._lock:
            race, self._later = self._race, plan
            if race is not None:
                if self.winner or not race_budget.affordable(race.log, plan):
                    return False
                known = race.log.predicted
                known[plan] = seconds / running * known[self.favourite]
                return race.enter(plan)
            if not self.winner or self._stopped or not self._affords_another:
                return False
            predicted = {self.winner: running, plan: seconds}
            log = Log(predicted, self.costs.setup(self._plans.setup, self.winner))
            listener = Listener(self._ended, self._released)
            self._challenged = True
            names = [self.winner, plan]
            self._race = Race(names, race_rules.RACE, log, listener, self._clock)
            return True

    @property
    def _affords_another(self) -> bool:
        """Whether the budget of all races allows for one more plan's first call."""
        plans = () if self.outcome is None else self.outcome.plans
        own = {plan.name: plan.seconds for plan in plans}.get(self.winner) or 0.0
        return self.costs.afford(own, self._plans.setup.making)

    @property
    def under_way(self) -> bool:
        """Whether plans race now, or the winner is being checked."""
        return self._race is not None

    def race(self) -> Race | None:
        """The race or check that is under way; one that is due now begins."""
        over, self._over = self._over, None
        if over is not None:
            over.tell()  # what was interrupted
        with self._lock:
            if self._race is None and self.calls_left == 0:
                self._race = self._check()
            return self._race

    def _check(self) -> Race:
        checks = self._checks
        names, listener = [self.winner, FLOAT32], Listener(self._ended, self._released)
        ready = checks.untried or FLOAT32 in self.costs.first
        longest = 0.0 if ready else self.costs.longest
        compiled = longest > 0 and self._plans.setup.compiled
        log = Log({}, Setup(compiled=compiled, longest=longest))
        return Race(names, checks.rules, log, listener, self._clock, checks.ahead)

    @property
    def calls_left(self) -> int | None:
        """The calls until the next check; None if there will be none."""
        if self.winner in ("", FLOAT32) or self._checks.ended or self._stopped:
            return None
        return self._checks.left

    def passed(self, calls: int) -> None:
        """Is told that so many calls are made before the next question."""
        with self._lock:
            self._checks.passed(calls)
            self.costs.steps += calls

    def made(self, plan: str, report: Report) -> None:
        """Is told of a plan that was made, and so of its size and predicted time."""
        self._note_size(plan, report)
        race = self._race
        if race is not None and plan != self._later:
            race.log.predicted[plan] = report.seconds16

    def _note_size(self, plan: str, report: Report) -> None:
        """Keeps what the outcome tells of a plan, which may be let go before."""
        self._sizes.setdefault(FLOAT32, report.size32)
        self._sizes[plan] = report.size

    @property
    def doubt(self) -> float:
        """The factor, at least 1, by which the predicted gain was wrong in the race."""
        race = self._race
        if race is None or self.winner:
            return self._doubt
        return race_rules.doubt(race.log)

    @property
    def front(self) -> str:
        """The name of the winner, or of the plan that is the fastest so far."""
        race = self._race
        return self.winner if race is None else race.front

    def drop(self, plan: str, why: str, *, failed: bool) -> None:
        """Has an entrant that cannot run called no more.

        Args:
          plan: its name.
          why: for the report.
          failed: whether that is a failure, which the report tells of the whole race.
        """
        self._checks.ended |= plan == FLOAT32
        race = self._race
        if race is not None:
            race.drop(plan, why, f"ended: {why}" if failed else "")
        elif plan == self.winner:
            self.winner = FLOAT32

    def stop(self) -> None:
        """Has no outcome told any more, because another contest takes over."""
        self._stopped = True

    def _ended(self, race: Race, outcome: TrialOutcome) -> None:
        with self._lock:
            if self._stopped:
                return
            if race is self._race:  # else its end is told again
                self._take_in(race, outcome)
        self._over = race
        try:
            self._tell(self, self._news)
        finally:
            self._plans.settle()
            if len(race.log.first) > 1:
                tensor_pool.trim()  # of what others needed than the winner
        self._over = None

    def _take_in(self, race: Race, outcome: TrialOutcome) -> None:
        """Goes on from the end of a race or check."""
        outcome = outcome.with_sizes(self._sizes)
        if not self.winner:
            self._doubt = race_rules.doubt(race.log)
        before, self.winner = self.winner, race.front
        self.favourite, challenged = self.winner, self._challenged
        self.costs.add(race.log, before, charged=challenged or not before)
        news = challenged or self._checks.untried or self.winner != before
        if challenged:
            outcome = self._merged(outcome, before)
        elif before:
            self._checks.done += 1
        if news:
            self.outcome = outcome
        self._race = None
        self._news = outcome if news else None
        same = self.winner == before
        self._checks.after(race.log, outcome, same=same, challenged=challenged)

    def _merged(self, outcome: TrialOutcome, before: str) -> TrialOutcome:
        """The outcome of a race between two, with what is known of all others."""
        self._challenged = False
        earlier = self.outcome
        if earlier is None:
            return outcome
        new = {plan.name: plan for plan in outcome.plans}
        old = {plan.name: plan for plan in earlier.plans}
        now, then = new[before].seconds, old[before].seconds
        if now and then and earlier.seconds32 and outcome.seconds32 is None:
            high = earlier.seconds32 * now / then
            outcome = dataclasses.replace(outcome, seconds32=high)
        plans = tuple((old | new).values())
        timed = sum(plan.timed for plan in plans)
        return dataclasses.replace(outcome, plans=plans, timed=timed)

    def _released(self, race: Race, plan: str) -> None:
        """Lets a plan go that is out of a race."""
        if plan != self.winner and not self._stopped:
            self._over = None if race is self._race else race
            self._plans.released(plan)
            self._over = None


def begun(
    plans: Plans,
    plan: str,
    others: Sequence[str],
    known: Record,
    kept: KeptRace,
    ended: _Ended,
    *,
    stepped: bool = False,
    clock: Callable[[], float] | None = None,
) -> tuple[Contest, Report]:
    """A contest that goes on from what an earlier run of the job found out.

    Args:
      plans, ended, clock: as of `Contest`.
      plan: the name of the one that runs first; it was made.
      others: the names of those that it races, besides float32, if it has not won yet.
      known: what that run stored.
      kept: its race, if it has not ended.
      stepped: as of `begin`.

    Returns:
      The contest, and the report on the plan as it now stands.
    """
    contest = Contest(plans, ended, kept.advanced, clock)
    report = plans.report(plan)
    if known.winner == plan:
        contest.begin_known(known, stepped=stepped)
        report = plan_store.as_measured(report, known, plans.setup.plain)
        return contest, dataclasses.replace(report, trial=KNOWN)
    contest.begin(plan, others, kept.earlier(known), stepped=stepped)
    return contest, dataclasses.replace(report, trial=UNDER_WAY)


def _as_known(known: Record) -> TrialOutcome | None:
    """The outcome of an earlier run's race, as far as it was stored."""
    plans = tuple(
        RacedPlan(name, None, seconds, 0, "won" if name == known.winner else "slower")
        for name, seconds in known.seconds.items()
    )
    high, low = known.seconds.get(FLOAT32), known.seconds.get(known.winner)
    twin = known.winner != FLOAT32
    return TrialOutcome(twin, high, low, 0, KNOWN, plans) if plans else None
