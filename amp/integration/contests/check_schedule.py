"""`CheckSchedule`: when the winner of a race is checked, and by which rules.

Used by `contest`, which makes the checks; `winner_checks` has the rules. Nothing is
timed and no winner is chosen here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from amp.graph_rewrite.outcomes import TrialOutcome
from amp.integration.contests.plan_store import Record
from amp.integration.racing import race_budget, race_rules, winner_checks
from amp.integration.racing.race_log import FLOAT32, Log
from amp.integration.racing.race_rules import Rules


@dataclasses.dataclass(slots=True)
class CheckSchedule:
    """The checks of one winner after another.

    Attributes:
      ratio: float32's time over the winner's, as last seen.
      done: how many checks there were.
      apart: calls between the last check, or the race, and the next.
      left: calls until the next.
      ended: whether there will be none any more.
      untried: whether a race ended without a call of float32; the next check has one.
      then: seconds of a call of the winner and of float32, by name, when it won in an
        earlier run of the job, as long as float32 need not be called to compare; else
        empty.
    """

    ratio: float = 1.0
    done: int = 0
    apart: int = 0
    left: int = 0
    ended: bool = False
    untried: bool = False
    then: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def recall(self, known: Record, *, stepped: bool) -> None:
        """Begins with the winner of an earlier run; arguments as of `begin_known`."""
        own, other = known.seconds.get(known.winner), known.seconds.get(FLOAT32)
        self.ratio = other / own if own and other else 1.0
        called = stepped or known.doubted
        self.then = {} if called or self.ratio <= 1.0 else known.seconds
        self.go_on()
        if known.doubted:
            self.set(winner_checks.DOUBTED)

    def go_on(self) -> None:
        """Begins to count to the next check, by the rules."""
        self.set(winner_checks.calls_to_check(self.done, self.ratio))

    def set(self, calls: int) -> None:
        """Has the next check come after so many calls."""
        self.apart = self.left = calls

    def passed(self, calls: int) -> None:
        """Is told that so many calls are made."""
        self.left = max(0, self.left - calls)

    @property
    def rules(self) -> Rules:
        """Those of the check that is due."""
        judge = functools.partial(
            winner_checks.checked, since=self.apart, then=self.then
        )
        return Rules(judge, winner_checks.cut_short)

    @property
    def ahead(self) -> int:
        """The winner's calls before float32's first one, as of `Turns`."""
        return winner_checks.CALLS_ALONE if self.then else 2

    def after(
        self, log: Log, outcome: TrialOutcome, *, same: bool, challenged: bool
    ) -> None:
        """Begins to count from the end of a race or check.

        Args:
          log: of it.
          outcome: what is known since.
          same: whether the winner is the one of before.
          challenged: whether it was a race with a plan that was made later, in which
            float32 need not have had a turn.
        """
        if outcome.seconds32 and outcome.seconds16:
            self.ratio = outcome.seconds32 / outcome.seconds16
        self.go_on()
        fates = {plan.name: plan.fate for plan in outcome.plans}
        dear = fates.get(FLOAT32) == race_rules.TOO_LONG  # and is tried later
        if dear or FLOAT32 in log.first or not same:
            self.then = {}
        if not challenged and not self.then:
            self.untried = FLOAT32 not in log.first
        if self.untried:
            self.set(max(self.left, race_budget.calls_until_affordable(log)))
