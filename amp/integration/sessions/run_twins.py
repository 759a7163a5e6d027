"""`RunTwins`: the forms of one run of a session, and which of them it takes.

`session_twins` has one for each combination of operations, fetches and feeds. Here a
run is made; it is translated by `run_plans`, which of its forms is the fastest is found
out by `contest`, and nothing of that is decided here.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.outcomes import TrialOutcome
from amp.graph_rewrite.report_builder import left
from amp.integration import fallback
from amp.integration.contests import plan_store
from amp.integration.contests.contest import Contest, begun
from amp.integration.contests.entrants import NOMINEES, OTHERS, NotMade
from amp.integration.contests.guard import Guard, Turn
from amp.integration.contests.kept_race import KeptRace
from amp.integration.contests.plan_store import Record
from amp.integration.observing import standstills
from amp.integration.observing.standstills import Standstill
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures
from amp.integration.runtime.unasked import Due
from amp.integration.sessions.plan_checks import PlanChecks
from amp.integration.sessions.policy_view import Run
from amp.integration.sessions.run_checks import Judged
from amp.integration.sessions.run_plans import MadeRun, RunPlans
from amp.integration.sessions.run_reports import RunReports

# Makes a run, and returns its outputs.
Make: TypeAlias = Callable[[Run], Any]
# Whether TensorFlow can place the nodes of a run and make their kernels.
Starts: TypeAlias = Callable[[Run], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """How a run is to be made.

    Attributes:
      off: why it has no race, "" if it may have one.
      unchecked: why its gradients are not compared, "" if they may be.
      recall: whether runs under the policy race, so that what earlier runs of the job
        found out counts.
      refused: the plans of each policy that TensorFlow could not start in this session;
        may be added to.
      judged: what is known of the gradients that were compared, by `RunCheck.key`; may
        be added to.
      lost: the variables by which 16 bits lose every gradient; may be added to.
    """

    off: str
    unchecked: str
    recall: bool
    refused: set[tuple[Any, str]]
    judged: dict[Any, Judged]
    lost: set[str]


class RunTwins:
    """The forms of one run.

    Args:
      plans: of the run; none was made yet.
      terms: how it is to be made.
      proven: has a run made at each further call without any question, until
        something is due.
    """

    def __init__(
        self,
        plans: RunPlans,
        terms: Terms,
        proven: Callable[..., None],
    ) -> None:
        self._plans, self._terms, self._proven = plans, terms, proven
        settled = None if plans.twins is None else plans.twins.settled
        self._policy = None if settled is None else settled.policy
        self._strict = self._policy is not None and self._policy.strict
        self._what = f"a session's run ({plans.asked})"
        self._key = ""
        self._contest: Contest | None = None
        self._running = FLOAT32  # the name of the plan, as far as it is known
        self._started: set[str] = set()  # the plans that have run
        self._checks: PlanChecks | None = None
        if not terms.unchecked:
            self._checks = PlanChecks(plans, terms.judged, self._what, self._strict)
        self._reports: RunReports | None = None
        if self._policy is not None:
            self._reports = RunReports(self._what, self._policy, plans.graph)
        self._lock = threading.RLock()  # held for a few lines and by no finalizer

    def begin(self) -> None:
        """Makes the first form of the run, and begins its race.

        Raises:
          AmpError: what the rewrite found wrong.
          InvalidArgumentError: the user changed a node that a session had run.
        """
        known = Record()
        if self._policy is not None and self._plans.computes():
            known = self._recalled() if self._terms.recall else known
        else:
            known = Record(FLOAT32)
        if known.winner == FLOAT32:
            self._plans.float32()
            return
        plan = known.winner if known.winner in NOMINEES else CUT.name
        made = self._made(plan) if plan == CUT.name else self._raced(plan)
        if isinstance(made, NotMade) and plan != CUT.name:
            plan, known = CUT.name, Record()
            made = self._made(plan)
        if isinstance(made, NotMade):
            self._plans.float32()
            return
        self._running = plan
        news = self._plans.news(plan)
        if made.planned is not None and not self._terms.off:
            self._enter(plan, known)
        elif self._reports is not None:
            self._reports.unraced(self._plans.reports(plan, news), self._terms.off)
        if not self._terms.recall:
            self._plans.settle()

    def _recalled(self) -> Record:
        """What earlier runs of the job found out about this run."""
        twins = self._plans.twins
        assert twins is not None
        module = self._plans.module()
        self._key, known = twins.begin_run(module)
        if known.winner == FLOAT32 and self._reports is not None:
            cause = "float32 was the fastest in an earlier run of the job"
            self._reports.left(left(module, twins.settled, "trial", cause))
        return known

    def _enter(self, plan: str, known: Record) -> None:
        """Begins the race of a plan that was made."""
        kept = KeptRace(self._key, self._plans.digest(plan))
        # In a session's graph only types change, as any of its tensors may be read.
        others = [nominee.name for nominee in OTHERS if not nominee.in_float32]
        clock = time.perf_counter
        self._contest, report = begun(
            self._plans, plan, others, known, kept, self._ended, clock=clock
        )
        if self._contest.under_way:
            self._plans.race()
        if self._reports is not None:
            self._reports.begin(plan, report)

    def call(
        self, run: Make, starts: Starts, work: float, feeds: Mapping[Any, Any]
    ) -> Any:
        """Makes one run that `proven` gives no form for, and returns its outputs.

        Args:
          run: makes a run.
          starts: says whether TensorFlow can start a run.
          work: how many elements are fed.
          feeds: what is fed, by the references of the user's tensors.
        """
        contest = self._contest
        race = None if contest is None else contest.race()
        turn = functools.partial(self._turn, run, starts, feeds)
        if race is not None:
            with fallback.strictly(self._strict):
                return race.call(turn, work)
        plan = self._running if contest is None else contest.winner
        checks = self._checks
        if checks is not None:
            checks.called(plan)
        outputs = turn(plan)
        if checks is None or not checks.waits(plan):
            self._go_on()
        return outputs

    def fastest(self) -> Run:
        """The form that is the fastest as far as is known."""
        contest = self._contest
        plan = self._running if contest is None else contest.front
        made = self._plans.known(plan)
        return made.run if isinstance(made, MadeRun) else self._plans.float32()

    def is_rewritten(self, form: Run) -> bool:
        """Whether a form of the run is computed otherwise than in float32."""
        made = None if form.plan == FLOAT32 else self._plans.known(form.plan)
        return isinstance(made, MadeRun) and made.planned is not None

    @property
    def _guard(self) -> Guard[Run]:
        """Not kept: it holds this object, which is to be freed with its last user."""
        float32, strict = self._plans.float32, self._strict
        return Guard(self._what, float32, lambda: self._contest, self._drop, strict)

    def guarded(
        self,
        run: Make,
        starts: Starts,
        plan: str,
        failed: tf.errors.OpError | None = None,
    ) -> Any:
        """Makes the run by a plan; if that cannot run, in another form.

        Args:
          run: makes a run.
          starts: says whether TensorFlow can start a run.
          plan: the name of the plan, or FLOAT32.
          failed: what was raised where the form was made without a question before.
        """
        made = None if plan == FLOAT32 else self._raced(plan)
        turn: Turn[Run]
        if isinstance(made, MadeRun):
            begun = functools.partial(self._has_begun, starts, made.run)
            turn = Turn(plan, made.run, begun if made.planned is not None else None)
        elif made is None:
            turn = Turn(FLOAT32, self._plans.float32())
        else:
            turn = Turn(plan, made)

        def noted(form: Run) -> Any:
            outputs = run(form)
            self._started.add(form.plan)
            return outputs

        return self._guard.call(turn, noted, failed)

    def _has_begun(self, starts: Starts, form: Run, _: tf.errors.OpError) -> bool:
        """Whether a part of a rewritten form that failed may have run."""
        if form.plan in self._started or starts(form):
            return True
        return not starts(self._plans.float32())

    def _made(self, plan: str) -> MadeRun | NotMade:
        """A form of the run, made when first asked for."""
        if (self._plans.twins, plan) in self._terms.refused:
            self._plans.drop(plan, failures.REFUSED)
        contest = self._contest
        made = self._plans.make(plan, 1.0 if contest is None else contest.doubt)
        checks = self._checks  # another thread may give up
        if checks is not None and isinstance(made, MadeRun) and made.planned:
            checks.made(plan)
        return made

    def _turn(
        self, run: Make, starts: Starts, feeds: Mapping[Any, Any], plan: str
    ) -> Any:
        """Makes the run by a plan, which is compared before its first step.

        A step is made in float32 for that; in a race, the plan's turn comes again.
        """
        made = None if plan == FLOAT32 else self._raced(plan)
        checks = self._checks
        if checks is not None and isinstance(made, MadeRun) and checks.waits(plan):
            check = checks.records(plan)
            judged = None if check is not None else checks.compare(plan, run)
            if judged is not None:
                self._take_in(plan, judged, checks)
            elif checks.waits(plan):
                race = None if self._contest is None else self._contest.race()
                if race is not None:
                    race.postpone()
                if check is None:  # another thread compares it
                    return self.guarded(run, starts, FLOAT32)
                return check.first(run, self._plans.float32(), feeds)
        return self.guarded(run, starts, plan)

    def _take_in(self, plan: str, judged: Judged, checks: PlanChecks) -> None:
        """Notes what a comparison found; a plan that is at fault runs no more.

        Before the weights were trained, gradients that are lost say nothing (see
        `FunctionChecks.stands_still`). What was found then stays in the report where
        nothing could be compared later, and where another plan is at fault.
        """
        trained, passed = checks.trained, checks.passed
        tells = not passed if judged.fault else judged.outcome.error is not None
        if self._reports is not None and (tells or not (trained or passed)):
            self._reports.compared(judged.outcome)
        if judged.fault:
            self._plans.drop(plan, judged.fault)
            # What has won is no plan any more, in the job's next run either.
            plan_store.save(self._key, winner="", seconds={}, ready={})
        if judged.lost and trained:
            self._terms.lost.update(judged.lost)

    def _raced(self, plan: str) -> MadeRun | NotMade:
        """The form that is to have its turn.

        Where that fails, the user is warned, and it is as if not worth making.
        """
        found = self._plans.known(plan)
        if found is not None:
            return found
        part = failures.without(self._what, plan, self._strict)
        failed = NotMade(failures.NOT_MADE)

        def make() -> MadeRun | NotMade:
            made = self._made(plan)
            if self._contest is not None and isinstance(made, MadeRun):
                self._contest.made(plan, self._plans.report(plan))
            return made

        return fallback.attempt(part, make, lambda: failed)

    def _drop(self, plan: str, why: str, failed: bool) -> Run:
        """Has a form that cannot run made no more; returns the fastest so far.

        What TensorFlow could not start is made no more in the whole session.
        """
        if plan != FLOAT32:
            self._plans.drop(plan, why)
        if why == failures.REFUSED:
            self._terms.refused.add((self._plans.twins, plan))
        contest = self._contest
        raced = contest is not None and contest.under_way  # then its end is reported
        if contest is not None:
            contest.drop(plan, why, failed=failed)
            if contest.winner != FLOAT32:
                return self.fastest()
        if not raced and self._reports is not None:
            self._reports.lost(why)
        return self._give_up()

    def reads(self, variables: set[str]) -> bool:
        """Whether the run reads one of some variables, given by name."""
        return self._plans.executes(variables)

    def stand_aside(self, still: Standstill) -> bool:
        """Has float32 run from now on, as the job stands still.

        Args:
          still: how it does.

        Returns:
          Whether another form ran before.
        """
        if self._policy is None or not standstills.counts(still, self._policy):
            return False
        rewritten = self.is_rewritten(self.fastest())
        if self._contest is not None:
            self._contest.stop()
        if self._reports is not None and rewritten:
            self._reports.stopped(still.cause)
        self._give_up()
        return rewritten

    def _give_up(self) -> Run:
        """Has float32 run from now on; nothing more is to come of it."""
        self._contest, self._checks, self._running = None, None, FLOAT32
        run = self._plans.float32()
        self._proven(run)
        return run

    def _go_on(self) -> None:
        """Has the form that runs made without a question, until the next check."""
        contest, checks = self._contest, self._checks
        if contest is not None and contest.winner == FLOAT32:
            self._give_up()
            return
        with self._lock:
            dues = [] if checks is None else [checks.due]
            if contest is not None:
                dues.append(lambda: Due(contest.calls_left, contest.passed))
            self._proven(self.fastest(), *dues)

    def _ended(self, contest: Contest, outcome: TrialOutcome | None) -> None:
        """Goes on with the winner of a race or check.

        If there is news, it goes into the run's report, and to the disk for the job's
        next run.

        Args:
          contest: what has ended.
          outcome: None if the same plan runs as before.
        """
        if contest is not self._contest:
            return
        winner = contest.winner
        if outcome is not None and self._reports is not None:
            report = None if winner == FLOAT32 else self._plans.report(winner)
            self._reports.ended(winner, report, outcome)
            plan_store.keep_outcome(self._key, winner, outcome)
        self._go_on()
