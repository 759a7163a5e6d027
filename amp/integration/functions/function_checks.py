"""`FunctionChecks`: when the gradients, or results, of a function's plans are compared.

Used by `function_twins`, which makes another twin if the one that was compared is at
fault. What is compared is in `accuracy_check`; nothing is compared or called here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING, PRODUCTS, Nominee
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.normalize import wanted_gradients
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Rewrite, begin
from amp.integration.contests import plan_store, stored_checks
from amp.integration.contests.entrants import (
    AS_EXACT,
    MEASURED,
    NOMINEES,
    NotMade,
)
from amp.integration.contests.stored_checks import StoredCheck
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.newest_reports import NewestReports
from amp.integration.observing import accuracy_check, plan_nodes
from amp.integration.observing.accuracy_check import LONGEST, AccuracyCheck, Checked
from amp.integration.observing.checks import AGAIN, FURTHER, Checks, Refused
from amp.integration.observing.step_probes import StepProbes
from amp.integration.observing.value_copies import Recorded
from amp.integration.runtime import definitions, failures
from amp.integration.runtime.function_call import FunctionCall
from amp.integration.runtime.unasked import Due, Unasked
from amp.once import Once
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """What all functions under one policy share.

    Attributes:
      settled: the policy, with every "auto" settled, and the device.
      proven: by a function's name, the name to call without any question.
      reports: on the functions.
      checks: of what they compute.
      once: has each plan made once.
      probes: observe steps.
      held: says that a function is asked for at each call until it has taken the
        elements that were looked at for it.
    """

    settled: Resolution
    proven: Unasked[bytes, bytes]
    reports: NewestReports
    checks: Checks
    once: Once
    probes: StepProbes
    held: Callable[[bytes], Due]

    def go_on(self, name: bytes, function: bytes, *dues: Callable[[], Due]) -> None:
        """Has a function called at each call without a question, until one is due.

        Args:
          name: the original's.
          function: what is called.
          dues: what is to come besides what may come for every function.
        """
        always = (functools.partial(due, name) for due in (self.probes.due, self.held))
        self.proven.put(name, function, *always, *dues)

    @property
    def policy(self) -> Policy:
        """The policy, which there is wherever a function is rewritten."""
        assert self.settled.policy is not None
        return self.settled.policy


class FunctionChecks:
    """The comparisons of one function's gradients, or results, with float32's.

    The plan that runs first is compared before it does, and then after `AGAIN` calls,
    `FURTHER` times as many, and so on; one that wins a race later, at the next call.

    Args:
      plans: of the function; their nominees may keep further nodes in float32 later.
      key: the function's fingerprint, "" if nothing of it is stored.
      shared: what all functions share.

    Attributes:
      compared: the name of the plan that was compared last, or is to be; "" for none.
      took: seconds of the function's last call.
    """

    def __init__(self, plans: FunctionPlans, key: str, shared: Shared) -> None:
        self.compared, self._key, self.took = "", key, 0.0
        self._name, self._shared = plans.original, shared
        self._sizes = None if plans.prepared is None else plans.prepared.sizes
        self._within = False  # whether its steps are in a loop or branch
        self._later = 0  # how many checks there were to be after the first

    def recall(self, plans: FunctionPlans, made: Made) -> StoredCheck | None:
        """What an earlier run of the job found out about a plan's accuracy."""
        if plans.prepared is None or accuracy_check.why_not(self._shared.policy):
            return None
        return stored_checks.recall(self._key, plans.prepared, made.low)

    def go_on_from(
        self, stored: StoredCheck, plans: FunctionPlans, made: Made
    ) -> Callable[[Report], Report]:
        """Takes over what an earlier run found; returns what a report notes of it.

        Args:
          stored: what it found.
          plans: of the function.
          made: the plan that runs first.
        """
        self.compared = stored.plan
        if stored.alone and plans.prepared is not None:
            low = plans.prepared.foreseen(plans.nominee(stored.plan)).low
            plans.borne = (low,)
        self._later = min(stored.later, 1)  # the weights may begin anew
        if not made.in_float32:
            self.later(plans)
        elif not stored.kept:
            return lambda report: report
        return Checked(stored.outcome).noted_in

    def keep(self, plans: FunctionPlans, checked: Checked) -> None:
        """Stores the result of a check for the next runs of the job."""
        if checked.prepared is None:
            return
        kept, plan = plans.nominee(self.compared).kept, NOMINEES[self.compared]
        if checked.nominee is not None:
            kept = checked.nominee.kept
            # What has won is another plan now.
            plan_store.save(self._key, winner="", seconds={}, ready={})
        name = CUT.name if self.compared == MEASURED.name else self.compared
        alone = plans.borne is not None
        found = StoredCheck(checked.outcome, kept, name, self._later, alone)
        stored_checks.keep(self._key, checked.prepared, plan, found)

    def first(
        self,
        plans: FunctionPlans,
        plan: str,
        rewrite: Rewrite,
        recorded: Recorded | None,
    ) -> None:
        """Has a plan compared that was just made.

        Args:
          plans: of the function.
          plan: the name of the one that runs first.
          rewrite: by this plan.
          recorded: what a step in float32 was computed from, if there was one.
        """
        prepared, nominee = plans.prepared, plans.nominee(plan)
        if prepared is None or not any(rewrite.low.values()):
            return  # nothing is rounded

        def make() -> AccuracyCheck:
            self._in_time()
            rivals = self._rivals(plans)
            check = AccuracyCheck(
                context_lib.context(), prepared, rewrite, nominee, rivals
            )
            if recorded is not None:
                check.begin_with(recorded)
            return check

        # One with a loop may be called once, so that its first call is the plan's.
        self._within = wanted_gradients.is_within(rewrite.graph)
        self._plan(plan, make, due=2 if self._within else 1)

    def _rivals(self, plans: FunctionPlans) -> tuple[Nominee, Nominee] | None:
        """Those of whose nodes all plans are that may race, where any does."""
        if plans.prepared is None:
            return None
        return plans.nominee(PRODUCTS.name), plans.nominee(EVERYTHING.name)

    def _in_time(self) -> None:
        """Makes sure that a call may be made once more slowly than by any plan.

        Raises:
          NotRepeatable: it takes long, as an epoch in one call does.
        """
        if self._within and self.took > LONGEST:
            took = f"a call of several steps takes {self.took:.0f} s"
            raise NotRepeatable(f"{took}, and one would be made in float32 for it")

    def entrant(
        self,
        plans: FunctionPlans,
        plan: str,
        call: FunctionCall,
        take_in: Callable[[Checked], None],
    ) -> tuple[bool, Any]:
        """Makes a call in place of a plan that is to run, if none was compared yet.

        So it is where the plan that runs first is in float32.

        Args, Returns: as those of `call`; the plan is in 16 bits, and was made.
        """
        if self.compared:
            return False, None
        self._plan(plan, functools.partial(self._anew, plans, plan), due=1)
        return self.call(call, plans, take_in)

    def winner(self, plans: FunctionPlans, plan: str) -> None:
        """Has the plan compared that won a race, unless that tells nothing new."""
        if plan == self.compared:
            return
        if not self.compared or not self._is_as_exact(plans, plan):
            self._later = 0
            self._plan(plan, functools.partial(self._anew, plans, plan), due=1)
        elif plan == PRODUCTS.name:  # nothing is wrong with the yardstick
            self._shared.checks.forget(self._name)

    def _is_as_exact(self, plans: FunctionPlans, plan: str) -> bool:
        """Whether nothing is to be found of a plan that was not of the one compared.

        Products that a steep function reads are no yardstick unless they were in it.
        """
        made, prepared = plans.known(plan), plans.prepared
        if plan not in AS_EXACT or prepared is None or not isinstance(made, Made):
            return plan in AS_EXACT
        places = plan_nodes.before_steep(prepared, made.low)
        if not places:
            return True
        compared = prepared.foreseen(plans.nominee(self.compared)).low
        return all(name in compared.get(use, ()) for use, name in places)

    def later(self, plans: FunctionPlans) -> None:
        """Has the plan that was compared, compared once more, later in its training.

        Not where another runs in its place, in which nothing is rounded.
        """
        plan = self.compared
        if not isinstance(plans.known(plan), NotMade):
            due = AGAIN * FURTHER**self._later
            self._later += 1
            self._plan(plan, functools.partial(self._anew, plans, plan), due=due)

    def stands_still(self, checked: Checked) -> bool:
        """Whether a check says that 16 bits train the weights no further.

        Before they were trained it does not: gradients of a deep network at random
        weights are noise in any 16 bits, and it trains all the same.
        """
        return bool(checked.lost) and self._later > 0

    def _plan(self, plan: str, make: Callable[[], AccuracyCheck], due: int) -> None:
        if not accuracy_check.why_not(self._shared.policy):
            self.compared = plan
            self._shared.checks.plan(self._name, make, due)

    def _anew(self, plans: FunctionPlans, plan: str) -> AccuracyCheck:
        """A check of a plan, at the weights that there are then."""
        self._in_time()
        context, nominee = context_lib.context(), plans.nominee(plan)
        module = definitions.read(context, self._name.decode())
        begun = begin(module, self._shared.settled, sizes=self._sizes)
        prepared = begun.prepared(plans.prices.timer(plan))
        made = prepared.made(nominee, definitions.new_suffix())
        return AccuracyCheck(context, prepared, made, nominee, self._rivals(plans))

    def call(
        self,
        call: FunctionCall,
        plans: FunctionPlans,
        take_in: Callable[[Checked], None],
    ) -> tuple[bool, Any]:
        """Makes what a call has to do for a check (see `Checks.call`)."""
        if not self._shared.checks.waits(self._name):
            return False, None
        record = functools.partial(self._record, call, plans)
        step = dataclasses.replace(call, record=record)
        return self._shared.checks.call(self._name, step, take_in)

    def _record(
        self, call: FunctionCall, plans: FunctionPlans, which: bytes, more: int
    ) -> Any:
        """Calls the function that also returns what the original takes from elsewhere.

        Args:
          call: the call that the user made.
          plans: of the function.
          which: the function to call.
          more: how many results it has more than the original.

        Raises:
          Refused: it gives way to the original.
        """
        try:
            return call.record(which, more)
        except tf.errors.OpError as e:
            made = plans.known(self.compared)
            twin = made.twin if isinstance(made, Made) else None
            begun = functools.partial(call.has_begun, which, e, twin, more)
            if self._shared.policy.strict or not failures.gives_way(e, begun):
                raise
            says = f"function {self._name.decode()} is not compared with float32"
            failures.warn_of_step(says, e)
            raise Refused from e
