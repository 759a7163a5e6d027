"""`RaceCosts`: what the races of one function have cost, and whether one more may race.

Used by `contest`. What one race may cost is in `race_budget`; here no race is held and
nothing is timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.integration.racing import race_budget
from amp.integration.racing.race_log import Log, Setup


@dataclasses.dataclass(slots=True)
class RaceCosts:
    """What races have cost so far.

    Attributes:
      first: seconds of the first call that each plan has had in a race that has ended.
      ready: seconds to the end of each plan's first call, of an earlier run of the job.
      spent: seconds that races have lost.
      steps: calls of the function so far, as far as they are known.
    """

    first: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ready: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spent: float = 0.0
    steps: int = 0

    @property
    def longest(self) -> float:
        """Seconds of the longest first call that is known, 0 if none is."""
        return max((*self.first.values(), *self.ready.values()), default=0.0)

    def afford(self, step: float, making: float) -> bool:
        """Whether the budget of all races allows for one more plan's first call.

        Args:
          step: seconds of a call of the winner.
          making: seconds that it takes to make a plan.
        """
        budget = race_budget.allowed(step, self.steps)
        return self.spent + self.longest + making <= budget

    def setup(self, made: Setup, warm: str) -> Setup:
        """What is known before a race between the winner and another plan.

        Args:
          made: what the plans tell.
          warm: the winner.
        """
        return dataclasses.replace(
            made, warm=warm, longest=self.longest, spent=self.spent, steps=self.steps
        )

    def add(self, log: Log, warm: str, *, charged: bool) -> None:
        """Adds what a race or check has cost that has ended.

        Args:
          log: of it.
          warm: who had calls before, "" for nobody.
          charged: whether it was a race, not a check, which has a budget of its own.
        """
        self.steps += sum(log.calls.values())
        if charged:
            self.spent = race_budget.lost(log)
        cold = {name: took for name, took in log.first.items() if name != warm}
        self.first = {**cold, **self.first}
