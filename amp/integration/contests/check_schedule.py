"""`CheckSchedule`: how many calls the winner of a race has before its next check.

Used by `contest`, which makes the checks; `winner_checks` has the rules. Nothing is
timed and no winner is chosen here.
"""

from __future__ import annotations

import dataclasses

from amp.integration.racing import winner_checks


@dataclasses.dataclass(slots=True)
class CheckSchedule:
    """When a winner is checked.

    Attributes:
      ratio: float32's time over the winner's, as last seen.
      done: how many checks there were.
      apart: calls between the last check, or the race, and the next.
      left: calls until the next.
      ended: whether there will be none any more.
    """

    ratio: float = 1.0
    done: int = 0
    apart: int = 0
    left: int = 0
    ended: bool = False

    def go_on(self) -> None:
        """Begins to count to the next check, by the rules."""
        self.set(winner_checks.calls_to_check(self.done, self.ratio))

    def set(self, calls: int) -> None:
        """Has the next check come after so many calls."""
        self.apart = self.left = calls

    def passed(self, calls: int) -> None:
        """Is told that so many calls are made."""
        self.left = max(0, self.left - calls)
