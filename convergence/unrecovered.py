"""Whether recovery stands in for what is shown to be otherwise, or for nothing shown.

Where a family needs scaling, the rule passes a setting that recovers more than half of
what is lost without scaling. That is for losses and metrics that are too noisy to be
found equal. One that is found different stays so, however much it recovers; and where
no run without scaling has a finite loss, there is no yardstick. It has no margin of its
own and can only refuse, so it stands beside the frozen rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convergence import clauses, comparison
from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED
from convergence.settings import FLOAT32


def finding(result: Mapping[str, Any], setting: str) -> Finding:
    """What is found of a setting that recovery may have passed."""
    bare = result["rule"]["worse"]
    sound = Finding("recovery", EQUAL, "")
    if not bare or setting in (FLOAT32, bare):
        return sound
    base = {run["seed"]: run for run in result["runs"] if run["setting"] == FLOAT32}
    own = [run for run in result["runs"] if run["setting"] == setting]
    pairs = [(run, base.get(run["seed"])) for run in own]
    told = comparison.compared(result["rule"], pairs)
    said = [clauses.equal(*each) for each in told.items()]
    for found in said:
        if found.outcome == DIFFERENT:
            return Finding("recovery", DIFFERENT, found.text)
    lost = [run for run in result["runs"] if run["setting"] == bare]
    if any(run["ends"][0] is not None for run in lost):
        return sound
    for found in said:
        if found.outcome == UNDECIDED:
            text = f"{found.text}, and nothing shows what is lost without scaling"
            return Finding("recovery", UNDECIDED, text)
    return sound
