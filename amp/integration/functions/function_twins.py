"""`FunctionTwins`: the twins of one function, and which of them a call runs.

Used by `twins`, which has one for each function that is rewritten. Here a call is made;
twins are made by `function_plans`, which of them is the fastest is found out by
`contest`, how exact it is by `checks`, and nothing of that is decided here.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.outcomes import TrialOutcome
from amp.graph_rewrite.report import Report
from amp.integration import fallback, heap
from amp.integration.contests import stored_checks
from amp.integration.contests.contest import Contest, begun
from amp.integration.contests.entrants import MEASURED, NOMINEES, OTHERS, NotMade
from amp.integration.contests.kept_race import KeptRace
from amp.integration.contests.plan_store import Record
from amp.integration.functions.between_calls import BetweenCalls
from amp.integration.functions.function_checks import FunctionChecks, Shared
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.functions.guarded_calls import Current, GuardedCalls
from amp.integration.functions.later_plan import LaterPlan
from amp.integration.functions.started_function import FirstStepResult
from amp.integration.observing import standstills
from amp.integration.observing.accuracy_check import Checked
from amp.integration.observing.standstills import Standstill, standing_still
from amp.integration.racing.exemptions import why_not
from amp.integration.racing.race import Race
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures
from amp.integration.runtime.function_call import FunctionCall
from amp.integration.runtime.unasked import Due
from amp.loss_scaling import resting


class FunctionTwins:
    """The twins of one function.

    Args:
      plans: of the function; none was made yet.
      key: the function's fingerprint, "" if it is not raced.
      shared: what all functions share.

    Attributes:
      between: what is done between its calls.
    """

    def __init__(self, plans: FunctionPlans, key: str, shared: Shared) -> None:
        self._name = plans.original
        self._what = f"function {self._name.decode()}"
        self._plans, self._key, self._shared = plans, key, shared
        self._policy, self._strict = shared.policy, shared.policy.strict
        self._contest: Contest | None = None
        # The name of the plan that the report is on; FLOAT32 once no twin runs.
        self._reported = ""
        self._checks = FunctionChecks(plans, key, shared)
        self.between = BetweenCalls(self._name, key, shared)
        self._lock = threading.RLock()  # held for a few lines and by no finalizer

    def begin(
        self, context: Any, known: Record, told: FirstStepResult | None = None
    ) -> bool:
        """Makes the first twin, and begins its race and its check.

        Args:
          context: TensorFlow's eager context.
          known: what an earlier run of the job found out.
          told: by a first step in float32, if there was one.

        Returns:
          Whether there is one; there is not if nothing is to be converted.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        told = told or FirstStepResult()
        plan = known.winner if known.winner in NOMINEES else CUT.name
        plans = self._plans
        made, rewrite = plans.make(context, plan)
        if isinstance(made, NotMade) and plan != CUT.name:
            plan, known = CUT.name, Record()
            made, rewrite = plans.make(context, plan)
        if isinstance(made, NotMade):
            stepped = told.seconds > 0
            plan, made, rewrite = plans.make_instead(context, plan, stepped=stepped)
        stored, others = None, self._others
        if isinstance(made, Made):
            stored = self._checks.recall(plans, made)
        if stored is not None and stored.kept and plans.prepared is not None:
            plans.let_all_go(context)
            plans = FunctionPlans(self._name, plans.prepared, stored.kept, known.winner)
            made, rewrite = plans.make(context, plan)
            if isinstance(made, NotMade):
                others = []
                plan, made, rewrite = plans.make_instead(context, plan)
        self._plans = plans
        self.between.begin(plans, plan, known, told.seconds)
        if isinstance(made, NotMade):
            return self._begin_in_float32(made)
        if stored is None and rewrite is not None:
            self._checks.first(plans, plan, rewrite, told.recorded)
        self._enter(plans, plan, [each for each in others if each != plan], known)
        if told.too_large and self._contest is not None:
            self._contest.drop(FLOAT32, failures.TOO_LARGE, failed=True)
        if stored is not None:
            noted = self._checks.go_on_from(stored, plans, made)
            self._shared.reports.change(self._name, noted)
        return True

    @property
    def _others(self) -> list[str]:
        """The names of the plans that may race besides float32 and the cheapest."""
        spares = self._plans.spares
        return [one.name for one in OTHERS if spares or not one.in_float32]

    def _begin_in_float32(self, made: NotMade) -> bool:
        """Begins without a twin; returns whether one may come of what is measured."""
        if made.report is not None:
            self._shared.reports.put(self._name, made.report)
        if self.between.later is None:
            return False
        self._contest = Contest(self._plans, self._ended)
        self._contest.begin_known(Record(FLOAT32))
        self._plans.settle()
        self._reported = FLOAT32
        return True

    def _enter(
        self, plans: FunctionPlans, plan: str, others: Sequence[str], known: Record
    ) -> None:
        """Begins the race of a plan that was made, and puts its report in place.

        Args:
          plans: of which it is one; they are the function's from now on.
          plan: its name.
          others: the names of those that it races, besides float32.
          known: what an earlier run of the job found out.
        """
        made = plans.known(plan)
        assert isinstance(made, Made)
        contest, off = None, why_not(self._policy)
        if off:
            report = dataclasses.replace(plans.report(plan), trial=f"off: {off}")
        else:
            kept = KeptRace(self._key, _digest(plans, made))
            stepped = self.between.stepped > 0
            contest, report = begun(
                plans, plan, others, known, kept, self._ended, stepped=stepped
            )
        if contest is None or not contest.under_way:
            plans.settle()
        self._shared.reports.put(self._name, report)
        with self._lock:
            self._plans, self._contest, self._reported = plans, contest, plan
            # What other threads were to call without a question is of other plans.
            self._shared.proven.end(self._name)

    def call(self, call: FunctionCall, context: Any) -> Any:
        """Makes one call that `proven` gives no name for, and returns its outputs.

        It is a step of a check if one is due, or a turn of a race if one is under way.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
        """
        start = time.perf_counter()
        take_in = functools.partial(self._take_in, context, call)
        done, outputs = self._checks.call(call, self._plans, take_in)
        if done:
            return outputs
        still = standing_still(self._policy, call.inputs)
        if still and (self._contest is not None or self._reported != FLOAT32):
            self._stand_aside(still)
        contest, probes = self._contest, self._shared.probes
        race = None if contest is None else contest.race()
        firsts = 0 if race is None else len(race.log.first)
        done, outputs = probes.call(self._name, self._front, call)
        if done:
            pass
        elif race is not None:
            turn = functools.partial(self._turn, race, call, context)
            with fallback.strictly(self._strict):
                outputs = race.call(turn, call.work)
        else:
            outputs = self._guarded.call(call, context, self._running)
        seconds = self._checks.took = time.perf_counter() - start
        if race is not None and len(race.log.first) > firsts:
            seconds = 0.0  # what it takes to make a plan pays for no measuring
        self.between.called(seconds, self._plans, self._contest, self._reported)
        if race is None:
            self._go_on()
        if not still and standing_still(self._policy, call.inputs):
            self._shared.proven.end(self._name)  # found during this very call
        return outputs

    def call_again(
        self, call: FunctionCall, context: Any, error: tf.errors.OpError
    ) -> Any:
        """Makes a call that has failed in the form that runs without a question.

        Args:
          call, context: as of `call`.
          error: what TensorFlow raised.
        """
        self._shared.proven.end(self._name)
        return self._guarded.call(call, context, self._running, error)

    def _turn(self, race: Race, call: FunctionCall, context: Any, plan: str) -> Any:
        """Makes the call of a plan whose turn it is in a race.

        A plan in 16 bits has none before gradients of one were compared: the step is
        made in float32 then, and recorded.
        """
        if plan in race.log.first:
            return self._guarded.call(call, context, plan)
        with heap.trimmed():
            if plan != FLOAT32 and not self._checks.compared:
                made = self._guarded.made(context, plan)
                if isinstance(made, Made) and not made.in_float32:
                    entrant = self._checks.entrant
                    take_in = functools.partial(self._take_in, context, call)
                    done, outputs = entrant(self._plans, plan, call, take_in)
                    if done:
                        race.postpone()
                        return outputs
            return self._guarded.call(call, context, plan)

    @property
    def settling(self) -> bool:
        """Whether plans race, or another is looked for as predictions were wrong."""
        contest = self._contest
        races = contest is not None and contest.under_way
        return races or self.between.hurries

    @property
    def _guarded(self) -> GuardedCalls:
        """Not kept: it holds this object, which is to be freed with its last user."""
        once = self._shared.once
        return GuardedCalls(self._name, self._current, self._drop, once, self._strict)

    def _current(self) -> Current:
        with self._lock:
            return Current(self._plans, self._contest)

    @property
    def _running(self) -> str:
        """The name of the plan that runs, as far as that is known."""
        return self._reported if self._contest is None else self._contest.winner

    @property
    def _front(self) -> bytes:
        """The function of the plan that runs, or of the fastest so far."""
        contest = self._contest
        plan = self._reported if contest is None else contest.front
        return self._plans.function(plan)

    def _drop(self, plan: str, why: str, failed: bool) -> bytes:
        """Has the original or a twin, which cannot run, called no more.

        Returns:
          The name of the function that is called instead: the fastest so far.
        """
        contest = self._contest
        raced = contest is not None and contest.under_way  # then its end is reported
        if contest is not None:
            contest.drop(plan, why, failed=failed)
            if contest.winner != FLOAT32:
                return self._plans.function(contest.front)
        if not raced:
            self._report(lambda report: report.lost(why))
        self._give_up()
        return self._name

    def _stand_aside(self, still: Standstill) -> None:
        """Has the original run from now on, as the job stands still.

        Not in later runs of the job: what it meets there may be other data.
        """
        contest = self._contest
        if self._running != FLOAT32:
            failures.tell_of_standstill(self._what, still.says)
            self._report(lambda report: report.stopped(still.cause))
        if contest is not None:
            contest.stop()
        self._give_up()

    def _give_up(self) -> None:
        """Has the original called from now on, and lets all else go.

        A call of a twin that another thread is about to make is one of the original.
        """
        self._contest, self.between.later, self._reported = None, None, FLOAT32
        self._shared.go_on(self._name, self._name)
        self._shared.checks.forget(self._name)
        self._shared.reports.forget(self._name)
        self._plans.let_all_go(context_lib.context())
        self._plans.settle()

    def _go_on(self) -> None:
        """Has the plan that runs called without a question, until the next check."""
        contest, which = self._contest, self._running
        if contest is not None and contest.race() is not None:
            return None
        later = self.between.to_come()
        if which == FLOAT32 and later is None:
            return self._give_up()
        with self._lock:
            checks = functools.partial(self._shared.checks.due, self._name)
            dues: list[Callable[[], Due]] = [checks, self.between.due]
            to_come = (each for each in (contest, later) if each is not None)
            dues += [functools.partial(_due, each) for each in to_come]
            self._shared.go_on(self._name, self._plans.function(which), *dues)
        return None

    def _ended(self, contest: Contest, outcome: TrialOutcome | None) -> None:
        """Goes on with the winner of a race or check.

        If there is news, it goes into the function's report, and to the disk for the
        job's next run. A winner whose gradients were not compared is checked next.

        Args:
          contest: what has ended.
          outcome: None if the same plan runs as before.
        """
        if contest is not self._contest:
            return None
        self.between.raced()
        made = self._plans.known(contest.winner)
        # Whatever fails below, or is interrupted: what runs is compared.
        if isinstance(made, Made) and not made.in_float32:
            self._checks.winner(self._plans, contest.winner)
        else:
            self._shared.checks.forget(self._name)
        if isinstance(made, Made) and not self._passes(contest.winner):
            return self._lose(outcome)
        if outcome is not None:
            if isinstance(made, Made) and contest.winner != self._reported:
                self._reported = contest.winner
                report = self._plans.report(contest.winner)
                self._shared.reports.put(self._name, report)
            self._report(lambda report: report.after(outcome))
            self._tell(lambda: self.between.keep(self._plans, contest, outcome))
        return self._go_on()

    def _passes(self, plan: str) -> bool:
        """Whether a winner passes the checks that were left until it has won."""
        part = failures.as_it_was(self._what, self._strict)

        def check() -> bool:
            self._plans.check(plan)
            return True

        with fallback.strictly(self._strict):
            return fallback.attempt(part, check, lambda: False)

    def _lose(self, outcome: TrialOutcome | None) -> None:
        """Has the original run from now on, as the winner has failed a check."""
        why = "a check of the winner failed"

        def lost(report: Report) -> Report:
            report = report if outcome is None else report.after(outcome)
            return report.stopped(why)

        self._report(lost)
        self._give_up()

    def _take_in(self, context: Any, call: FunctionCall, checked: Checked) -> None:
        """Records the result of a check, and makes the twin that it asks for."""
        if self._checks.stands_still(checked):
            self._report(checked.noted_in)
            return standstills.lost(call.inputs[number] for number in checked.lost)
        prepared, nominee = checked.prepared, checked.nominee
        if prepared is not None and nominee is not None:
            part = failures.as_it_was(self._what, self._strict)
            make = functools.partial(FunctionPlans, self._name, prepared, nominee.kept)
            replace = functools.partial(self._replace, context, make, checked)
            with fallback.strictly(self._strict):
                if not fallback.attempt(part, replace, lambda: False):
                    return self._lose_all(checked)
        elif checked.borne is not None:
            self._plans.borne = checked.borne
        self._report(checked.noted_in)
        resting.rest(checked.bent)
        # A function that is traced again is another one to the next run, too.
        if prepared is not None and not checked.bent:
            self._keep(checked)
            self._checks.later(self._plans)
        return None

    def _lose_all(self, checked: Checked) -> None:
        """Has the original run from now on, as a check has left nothing to gain."""
        why = checked.outcome.text
        if checked.outcome.error is not None:
            why = f"its check of accuracy leaves too little in 16 bits: {why}"
        self._report(lambda report: checked.noted_in(report.lost(why)))
        self._keep(checked)
        self._give_up()

    def _report(self, change: Callable[[Report], Report]) -> None:
        """Has the function's report tell what was found out."""
        self._tell(lambda: self._shared.reports.change(self._name, change))

    def _keep(self, checked: Checked) -> None:
        """Stores the result of a check for the next runs of the job."""
        self._tell(lambda: self._checks.keep(self._plans, checked))

    def _tell(self, ours: Callable[[], None]) -> None:
        """Tells others what was found out; the job goes on where that fails."""
        says = f"what was found out about {self._what} is not told"
        fallback.attempt(fallback.Part(says, self._strict), ours, lambda: None)

    def _replace(
        self, context: Any, make: Callable[[], FunctionPlans], checked: Checked
    ) -> bool:
        """Makes the plan that runs anew, with further nodes in float32.

        It races: against all others if no race has ended yet, else against float32, and
        against the one that was compared if that had not raced before. If nothing of it
        is left in 16 bits, float32 with other kernels does so alone.

        Returns:
          Whether there is a plan to run.
        """
        before, contest = self._plans, self._contest
        compared, running = self._checks.compared, self._reported
        raced = contest is not None and contest.winner != ""
        if contest is not None:
            running = contest.winner or running
            contest.stop()
        plan = running if running in NOMINEES else compared
        others = [] if raced else self._others
        plans = make()
        plans.borne = checked.borne
        plans.prices.newest = before.prices.newest
        if before.repriced is not None and (not raced or compared == MEASURED.name):
            plans.reprice(before.repriced)
            others.append(MEASURED.name)
        made, _ = plans.make(context, plan)
        if isinstance(made, NotMade):
            others, self.between.later = [], None  # no plan is to try 16 bits then
            plan, made, _ = plans.make_instead(context, plan)
        if isinstance(made, Made):
            others = [one for one in others if one != plan]
            self._enter(plans, plan, others, Record())  # other threads go on with it
        before.let_all_go(context)
        return isinstance(made, Made)

    def functions(self) -> list[str]:
        """The names of the functions that are registered for the original."""
        return self._plans.functions()

    def forget(self) -> None:
        """Drops what others store for a function that is going; takes no lock."""
        self._shared.proven.forget(self._name)
        self._shared.checks.forget(self._name)
        self._shared.reports.forget(self._name)


def _due(coming: Contest | LaterPlan) -> Due:
    return Due(coming.calls_left, coming.passed)


def _digest(plans: FunctionPlans, made: Made) -> str:
    """A name for a plan that was made, the same in every run of the job."""
    prepared = plans.prepared
    return "" if prepared is None else stored_checks.digest(prepared, made.low)
