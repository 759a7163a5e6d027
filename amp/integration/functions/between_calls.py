"""`BetweenCalls`: what is measured, planned and stored of a function between its calls.

Used by `function_twins`, which makes the calls. What is measured and planned is
`later_plan`'s matter, who wins that of `contest`; no function is called here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from amp.graph_rewrite.outcomes import TrialOutcome
from amp.graph_rewrite.report import Report
from amp.integration import fallback, tensor_pool
from amp.integration.contests import plan_store
from amp.integration.contests.contest import Contest
from amp.integration.contests.plan_store import Record
from amp.integration.functions import later_plan
from amp.integration.functions.function_checks import Shared
from amp.integration.functions.function_plans import FunctionPlans
from amp.integration.functions.later_plan import LaterPlan
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime.unasked import Due


class BetweenCalls:
    """What is done for one function between its calls.

    Args:
      name: the function's.
      key: its fingerprint, under which is stored; "" if it is not raced.
      shared: what all functions share.

    Attributes:
      later: what measures and plans it while it runs; None if nothing does.
      planning: seconds that planning the function took, its first twin included.
      stepped: seconds of a first step in float32, 0 if there was none.
    """

    def __init__(self, name: bytes, key: str, shared: Shared) -> None:
        self._name, self._key, self._shared = name, key, shared
        self.later: LaterPlan | None = None
        self.planning = self.stepped = 0.0
        self._newer_prices: Callable[[FunctionPlans], None] | None = None
        self._began = False  # whether the first call is over

    def begin(
        self, plans: FunctionPlans, plan: str, known: Record, stepped: float
    ) -> None:
        """Begins with a plan that was made, or was to be made.

        Args:
          plans: of the function.
          plan: the plan's name.
          known: what an earlier run of the job found out.
          stepped: as the attribute.
        """
        if known.winner == plan:
            self._newer_prices = later_plan.newer_prices(plans)
        self.later = later_plan.begun(plans, known)
        self.stepped = stepped

    @property
    def hurries(self) -> bool:
        """Whether another plan is looked for, as predictions were wrong."""
        later = self.later  # another thread may let it go
        return later is not None and later.hurries

    def due(self) -> Due:
        """When a call is asked for the sake of newer prices: at the second."""
        return Due(None if self._newer_prices is None else 0, lambda calls: None)

    def called(
        self,
        seconds: float,
        plans: FunctionPlans,
        contest: Contest | None,
        reported: str,
    ) -> None:
        """Measures and plans what is due after a call.

        Args:
          seconds: that the call took.
          plans: of the function.
          contest: of these; None if there is none.
          reported: the name of the plan that the function's report is on.
        """
        tell, began, self._began = self._newer_prices, self._began, True
        if tell is not None and began:  # the job waits for its first call
            self._newer_prices = None
            says = "reports predict by older times"
            told = functools.partial(tell, plans)
            self._predicting(plans, reported, told, lambda: None, says)
        later = self.later
        if later is None or contest is None:
            return
        later.called(seconds)
        says = f"function {self._name.decode()} is not planned by measured times"
        go_on = functools.partial(later.go_on, plans, contest)
        self._predicting(plans, reported, go_on, later.stop, says)

    def _predicting(
        self,
        plans: FunctionPlans,
        reported: str,
        work: Callable[[], None],
        failed: Callable[[], None],
        says: str,
    ) -> None:
        """Does what may change what plans cost, and has the report tell it."""

        def told() -> None:
            before = plans.prices.of(reported)
            work()
            prices = plans.prices.of(reported)
            if prices is not None and prices is not before:
                report = functools.partial(Report.repriced, prices=prices)
                self._shared.reports.change(self._name, report)

        part = fallback.Part(says, self._shared.policy.strict)
        fallback.attempt(part, told, failed)

    def to_come(self) -> LaterPlan | None:
        """As `later`, which is let go, and noted as done, once it is over."""
        later = self.later
        if later is None or not later.over:
            return later
        self.later = None
        tensor_pool.trim()  # of what was measured
        plan_store.save(self._key, tried=later.tried)
        return None

    def raced(self) -> None:
        """Is told of the end of a race."""
        later = self.later
        if later is not None:
            later.raced()

    def keep(
        self, plans: FunctionPlans, contest: Contest, outcome: TrialOutcome
    ) -> None:
        """Stores the winner of a race for the next run of the job.

        Also float32 while another plan is to come: a run that ends before would have
        the next one race again, and so each of a job's short runs. Float32 is contested
        again in some of them (`Record.contested`), by what was measured until then.
        """
        winner = contest.winner
        times = plans.prices.times(winner)
        name, outcome = later_plan.as_next_run(winner, outcome)
        ready = self._ready(contest, name)
        plan_store.keep_outcome(self._key, name, outcome, times, ready)

    def _ready(self, contest: Contest, name: str) -> Mapping[str, float] | None:
        """How long float32's first call took and how long the winner's would have.

        Args:
          contest: that it has won.
          name: the winner's in the next run of the job.

        Returns:
          None if this run has not seen it; {} if no run can have, as another plan had
          that name before.
        """
        winner = contest.winner
        first = contest.costs.first.get(winner)
        high = self.stepped or contest.costs.first.get(FLOAT32)
        if winner == FLOAT32 or first is None or not high:
            return None if name == winner else {}
        return {FLOAT32: high, name: self.planning + first}
