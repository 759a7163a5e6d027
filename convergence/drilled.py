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
CODE = (
    *("bits.py", "rig.py", "terms.py", "unhooked.py", "drills.py", "scaler_drills.py"),
    *("growth_drills.py", "gradient_drills.py", "overflow_drills.py"),
    *("float32_drills.py", "row_drills.py"),
)
# Drills of before that are trusted for what they asked, and what they did not ask for.
_SECOND = (
    "what moving means move by, the loss of one example, gradients of rows, those that "
    "are all larger, or clipped or rounded under their scale, hooks in a mixed scope"
)
_FIRST = "one infinite value among finite ones, -inf, the hook for gradients in float32"
EARLIER = {
    "7907239ebc37091c": _SECOND,
    "15b78bd5ea10ce78": f"{_FIRST}, restarts, {_SECOND}",
}


def by() -> str:
    """The digest of the code of drills."""
    return audit.digest(Path(__file__).with_name(name) for name in CODE)


def code(task: str, drills: str | None = None) -> str:
    """The digest of what drills of a task are made by, the package included.

    Args:
      task: the family's module in `convergence.tasks`.
      drills: the digest of their own code; by default today's.
    """
    return audit.of([audit.code(task), drills or by()])


def told(result: Mapping[str, Any]) -> str:
    """What drills found of results, which settings had them, and what they lack.

    The verdict asks neither for today's package, which plans the step as theirs did,
    nor for drills that ask for all that today's do; here it is said.
    """
    trusted, drills = {by(): "", **EARLIER}, result.get("drills", {})
    held = {name: d for name, d in drills.items() if d.get("by") in trusted}
    faulty = [name for name, drill in held.items() if drill["faults"]]
    if faulty:
        return f"Drills of {', '.join(faulty)} find faults"
    if not held:
        return "Not drilled"
    family, lacks = families.FAMILIES.get(result["family"]), []
    task = family.task if family else ""
    if any(d["code"] != code(task, d["by"]) for d in held.values()):
        lacks.append("of an earlier package")
    for asked in sorted({trusted[drill["by"]] for drill in held.values()} - {""}):
        lacks.append(f"which did not ask for {asked}")
    said = f" ({'; '.join(lacks)})" if lacks else ""
    return f"Drills of {', '.join(held)}{said} find nothing"


def finding(result: Mapping[str, Any], setting: str) -> Finding:
    """What drills found of a setting with a loss scale."""
    if result["settings"][setting]["scaling"] is None:
        return Finding("drill", EQUAL, "")
    drill = result.get("drills", {}).get(setting)
    if drill is None:
        return Finding("drill", UNDECIDED, "not drilled")
    if drill.get("by") not in (by(), *EARLIER):
        return Finding("drill", UNDECIDED, "drilled by others than today's drills")
    faults = drill["faults"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    text = f"drill: {faults[0]}{more}" if faults else ""
    return Finding("drill", DIFFERENT if faults else EQUAL, text)
