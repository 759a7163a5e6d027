"""Whether results still speak for the code at hand; those that do not are not counted.

Compares what results hold with what is frozen and what stands in the working tree.
Nothing is trained; plans are made anew by whom the caller names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from convergence import arms, audit, families, goals, margins, results
from convergence.families import Size

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
       is another one. Or what they hold of the rule and of their settings is not what
       these say.
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
    held = _goal(result) if goals.is_of(result) else _frozen(result, file)
    return held or _code(result, replan)


def _goal(result: Mapping[str, Any]) -> str:
    """Case 2, of results that have a goal."""
    if found := goals.stale(result):
        return found
    entry = goals.entry(result["family"], result["data"])
    return _edited(result, families.FAMILIES[result["family"]].full, entry)


def _edited(result: Mapping[str, Any], size: Size, entry: Mapping[str, Any]) -> str:
    """Case 2: whether results hold another rule, or other settings, than is known."""
    family, dtype = families.FAMILIES[result["family"]], result["dtype"]
    due = results.rule(family, size, dtype, entry)
    other = [key for key, value in due.items() if result["rule"].get(key) != value]
    known = {arm.name: arm for arm in (*arms.compared(), *arms.controlled())}
    other += [
        name
        for name, told in result["settings"].items()
        if name not in known
        or _asked(known[name].told(dtype, size.steps)) != _asked(told)
    ]
    return f"they hold another {', '.join(other)} than is known" if other else ""


def _asked(told: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """What is asked of a setting; how its scale moves, the rule replays anyway."""
    return told["mixed"], told["must_pass"], bool(told["scaling"])


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
    for size in sizes:
        if entry["row"] == margins.row(family, size):
            return _edited(result, size, entry)
    return "the family's row has changed since"


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
