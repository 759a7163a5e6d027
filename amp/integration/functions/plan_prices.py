"""`PlanPrices`: by which times the plans of a function are made, and reports predict.

Used by `function_plans`. A plan stays as it was made; its report predicts by the newest
times. Nothing is measured and no plan is made here.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.cost.op_instance import Timer, Times
from amp.graph_rewrite.outcomes import Prices
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.contests.entrants import NOMINEES
from amp.integration.contests.stored_checks import Low
from amp.integration.measuring.job_timer import Noted


class PlanPrices:
    """The prices of one function's plans, by their names.

    Args:
      timer: gives the times that plans are made by, unless `made_by` says otherwise.

    Attributes:
      newest: what gave the times that reports predict by, if others than those.
    """

    def __init__(self, timer: Timer) -> None:
        self.newest: Timer | None = None
        self._timers = dict.fromkeys(NOMINEES, timer)
        self._prices: dict[str, Prices] = {}

    def made_by(self, plan: str, timer: Timer) -> None:
        """Is told that a plan is made by other times than the first ones."""
        self._timers[plan] = timer

    def timer(self, plan: str) -> Timer:
        """What gave the measured times that a plan was made by."""
        return self._timers[plan]

    def times(self, plan: str) -> Mapping[str, Times]:
        """The measured times that a plan was made by, as far as they were noted."""
        timer = self._timers.get(plan)
        return timer.times if isinstance(timer, Noted) else {}

    def of(self, plan: str) -> Prices | None:
        """What a plan's report predicts by; None for the prices that it was made by."""
        return self._prices.get(plan)

    def tell(self, prepared: Prepared, plans: Mapping[str, Low]) -> None:
        """Has reports on plans predict by other prices.

        Args:
          prepared: the function at these prices.
          plans: those that were made.
        """
        self.newest = prepared.timer
        for plan, low in plans.items():
            self._prices[plan] = prepared.prices(prepared.holding(low))

    def made(self, plan: str, prepared: Prepared, low: Low) -> None:
        """Is told of a plan that was made, after others were told newer prices."""
        if self.newest is not None:
            newest = prepared.repriced(self.newest)
            self._prices[plan] = newest.prices(newest.holding(low))

    def predicted(self, plan: str, report: Report) -> Report:
        """The report on a plan, as it predicts by the newest prices."""
        prices = self._prices.get(plan)
        return report if prices is None else report.repriced(prices)

    def forget(self, plan: str) -> None:
        """Lets a plan go."""
        self._prices.pop(plan, None)
