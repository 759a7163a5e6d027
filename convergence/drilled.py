"""What drills found of a setting, and whether they were today's; beside the rule.

Reads results; nothing is drilled here (`drilling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convergence import audit, families
from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED

# What drills are made of; `drilling` only says who is drilled.
CODE = ("drills.py", "scaler_drills.py", "terms.py", "unhooked.py")


def by() -> str:
    """The digest of the code of drills."""
    return audit.digest(Path(__file__).with_name(name) for name in CODE)


def code(task: str) -> str:
    """The digest of what drills of a task are made by, the package included."""
    return audit.of([audit.code(task), by()])


def of_today(result: Mapping[str, Any]) -> bool:
    """Whether drills of results were of today's package, task and drills, all of them.

    The verdict asks for today's drills alone: a package that plans a step as before may
    have changed all the same, and only the page says so.
    """
    family = families.FAMILIES.get(result["family"])
    if family is None:
        return False
    now = code(family.task)
    return all(drill["code"] == now for drill in result["drills"].values())


def finding(result: Mapping[str, Any], setting: str) -> Finding:
    """What drills found of a setting with a loss scale.

    Earlier drills may not have looked for what today's find.
    """
    if result["settings"][setting]["scaling"] is None:
        return Finding("drill", EQUAL, "")
    drill = result.get("drills", {}).get(setting)
    if drill is None:
        return Finding("drill", UNDECIDED, "not drilled")
    if drill.get("by") != by():
        return Finding("drill", UNDECIDED, "drilled by others than today's drills")
    faults = drill["faults"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    text = f"drill: {faults[0]}{more}" if faults else ""
    return Finding("drill", DIFFERENT if faults else EQUAL, text)
