"""`KeptRace`: a race that has not ended, kept for the next run of the job.

Used by what races, a function's twins or those of a session's run. Nothing is timed or
decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp.integration.contests import plan_store
from amp.integration.contests.plan_store import Record


class KeptRace:
    """What is stored of one race; it says nothing of a race of another plan.

    Args:
      key: the fingerprint of what races; under "" nothing is stored.
      plan: a name of the plan that the race begins with, the same in every run.
    """

    def __init__(self, key: str, plan: str) -> None:
        self._key, self._plan = key, plan

    def earlier(self, known: Record) -> Mapping[str, Any]:
        """What an earlier run left of the race, {} if nothing."""
        return known.race if known.race.get("plan") == self._plan else {}

    def advanced(self, kept: Mapping[str, Any]) -> None:
        """Stores how far the race is."""
        plan_store.save(self._key, race={"plan": self._plan, **kept})
