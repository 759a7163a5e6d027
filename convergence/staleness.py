"""Whether results still speak for the code at hand; those that do not are not counted.

Compares what results hold with what is frozen and what stands in the working tree.
Nothing is trained; plans are made anew by whom the caller names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from convergence import audit, families, goals, margins, results

# Plans of a result's settings as they are made now; None where they cannot be.
Replan = Callable[[Mapping[str, Any]], Mapping[str, str] | None]


def as_held(result: Mapping[str, Any]) -> Mapping[str, str]:
    """A `Replan` for whom plans do not matter: those that the results hold."""
    return {run["setting"]: run["plan"] for run in result["runs"]}


def reason(result: Mapping[str, Any], replan: Replan, file: Path = margins.FILE) -> str:
    """Why results are not counted; "" if they are.

    1. They are of an earlier protocol.
    2. The margins that they were judged by are not, or no longer, those frozen, or are
       of another row of the family; or they were begun before these were. Or their goal
       is another one.
    3. The training loop, the task, its data or its model has changed since.
    4. The package's loss scaling or its rewriter has changed since, and makes of a step
       of theirs another graph, or plans it otherwise.

    Args:
      result: what a file of results holds.
      replan: makes plans anew; asked in case 4 only.
      file: of frozen margins.
    """
    if result.get("protocol") != results.PROTOCOL:  # Case 1
        return "of an earlier protocol"
    held = goals.stale(result) if goals.is_of(result) else _frozen(result, file)
    return held or _code(result, replan)


def _frozen(result: Mapping[str, Any], file: Path) -> str:
    """Case 2."""
    name = margins.key(result["family"], result["data"], quick=result["quick"])
    entry = margins.read(file).get(name)
    if entry is None or entry["tag"] != result["rule"]["tag"]:
        return "the margins that they were judged by are not those frozen"
    if entry["rule"] != audit.rule():
        return "the rule has changed since"
    if result["begun"] < entry["frozen"]:
        return "begun before the margins were frozen"
    family = families.FAMILIES.get(result["family"])
    if family is None:
        return "there is no such family"
    sizes = (family.quick, family.real) if result["quick"] else (family.full,)
    if entry["row"] not in [margins.row(family, size) for size in sizes]:
        return "the family's row has changed since"
    return ""


def _code(result: Mapping[str, Any], replan: Replan) -> str:
    """Cases 3 and 4."""
    family = families.FAMILIES[result["family"]]
    now, then = audit.code(family.task), result["code"]
    if now["suite"] != then["suite"]:
        return "the training loop, the task, its data or its model has changed since"
    if now["package"] == then["package"]:
        return ""
    made = replan(result)
    if made is None:
        return "the package has changed since, and the data to plan anew is not here"
    known = {run["setting"]: run["plan"] for run in result["runs"]}
    other = [setting for setting in known if made.get(setting, "") != known[setting]]
    return (
        f"the step or its plan has changed since ({', '.join(other)})" if other else ""
    )
