"""`PlanChecks`: when one run's plans are compared with float32, and what is known.

Used by `run_twins`, which drops a plan that is at fault. What is compared is in
`run_checks`; no run is made but by those.
"""

from __future__ import annotations

import threading
from typing import Any

from amp.graph_rewrite.assign.nominee import CUT, UNCLUSTERED
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.integration import fallback
from amp.integration.observing.accuracy import Errors
from amp.integration.observing.checks import AGAIN, FURTHER
from amp.integration.runtime.unasked import Due
from amp.integration.sessions.run_checks import Judged, Make, RunCheck
from amp.integration.sessions.run_plans import RunPlans


class PlanChecks:
    """The comparisons of one run's plans, each before the plan makes its first step.

    The one that wins is compared once more after `AGAIN` runs, `FURTHER` times as many
    later, and so on, as other weights have other gradients.

    Args:
      plans: of the run.
      judged: what is known of the session's gradients, by `RunCheck.key`; may be added
        to.
      what: the run, for warnings.
      strict: whether a failure is raised.
    """

    def __init__(
        self,
        plans: RunPlans,
        judged: dict[Any, Judged],
        what: str,
        strict: bool,
    ) -> None:
        self._plans, self._judged = plans, judged
        says = f"{what} is not compared with float32"
        self._part = fallback.Part(says, strict)
        # By plan, what compares it, or why that cannot be.
        self._pending: dict[str, RunCheck | str] = {}
        self._met: set[str] = set()
        # The first plan that was none at fault, and its errors.
        self._best: tuple[str, Errors] | None = None
        self._doubted = False  # whether the cheapest plan is at fault
        self._later = 0  # comparisons of trained weights
        self._left: int | None = None  # runs until the next one, if one is to come
        self._busy = threading.Lock()

    def made(self, plan: str) -> None:
        """Is told of a plan that changes the run; it may have been told before.

        Without clusters the cheapest is as exact as with them, unless that is at fault.
        """
        if plan not in self._met and (plan != UNCLUSTERED.name or self._doubted):
            self._met.add(plan)
            self._plan(plan)

    def _plan(self, plan: str) -> None:
        """Has a plan compared."""

        def check() -> RunCheck | str | None:
            try:
                return self._plans.check(plan)
            except NotRepeatable as e:
                return str(e)

        found = fallback.attempt(self._part, check, lambda: None)
        if found is not None:
            self._pending[plan] = found

    @property
    def passed(self) -> bool:
        """Whether a plan was compared and none at fault."""
        return self._best is not None

    @property
    def trained(self) -> bool:
        """Whether what was compared last is of weights that were trained meanwhile."""
        return self._later > 0

    def due(self) -> Due:
        """When the plan that has won is compared once more."""
        left = None if self._left is None else max(0, self._left - 1)
        return Due(left, self._passed)

    def _passed(self, runs: int) -> None:
        if self._left is not None:
            self._left -= runs

    def called(self, plan: str) -> None:
        """Is told of a run by the plan that has won, which may be due."""
        self._passed(1)
        if self._left is not None and self._left <= 0:
            self._left = None
            self._later += 1
            self._plan(plan)

    def waits(self, plan: str) -> bool:
        """Whether a plan that was made is still to be compared."""
        if plan == UNCLUSTERED.name:  # made before the cheapest was compared, or not
            self.made(plan)
        return plan in self._pending

    def records(self, plan: str) -> RunCheck | None:
        """What is to make a step in float32 before a plan is compared, if anything."""
        check = self._pending.get(plan)
        if not isinstance(check, RunCheck) or check.has_batch:
            return None
        return None if self._key(check) in self._judged else check

    def _key(self, check: RunCheck) -> tuple[Any, ...]:
        return (*check.key, self._later)

    def compare(self, plan: str, run: Make) -> Judged | None:
        """Compares a plan that waits for it, which it does no more then.

        Args:
          plan: its name.
          run: makes a run of the twin.

        Returns:
          What was found; None if another thread compares it, or has.
        """
        if not self._busy.acquire(blocking=False):
            return None
        try:
            check = self._pending.get(plan)
            return None if check is None else self._compared(plan, check, run)
        finally:
            self._busy.release()

    def _compared(self, plan: str, check: RunCheck | str, run: Make) -> Judged:

        def compare() -> Judged:
            why = check
            try:
                if isinstance(check, RunCheck):
                    key, best = self._key(check), None if self._later else self._best
                    if key not in self._judged:
                        self._judged[key] = check.compare(run, best)
                    self._left = AGAIN * FURTHER**self._later
                    found = self._judged[key]
                    self._doubted |= bool(found.fault) and plan == CUT.name
                    if not found.fault and found.errors is not None:
                        self._best = self._best or (plan, found.errors)
                    return found
            except NotRepeatable as e:
                why = str(e)
            return Judged(AccuracyOutcome(f"not checked: {why}"))

        failed = Judged(AccuracyOutcome("not checked: that failed"))
        found = fallback.attempt(self._part, compare, lambda: failed)
        self._pending.pop(plan, None)
        return found
