"""Goals: what full sizes are to reach, trained once in float32 and once in 16 bits.

Quick sizes show by pairs that mixed precision trains to the same place (`verdict`); one
pair shows no such thing. It shows that models trained to where their field trains them
get there in 16 bits, and that gradients and scales are sound on the way. Nothing is
trained here, and no other clause is judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convergence import audit
from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL
from convergence.errors import ResultError
from convergence.families import FAMILIES, GOALS, Goal
from convergence.verdict import Row


def entry(family: str, data: str) -> dict[str, Any]:
    """What results hold of a goal, in the place of frozen margins.

    Args:
      family: its name.
      data: name of the data that it is trained on.

    Raises:
      ResultError: the family has no goal, or one on other data.
    """
    goal = _goal(family, data)
    if goal is None:
        known = ", ".join(
            f"{name} on {each.data}" for name, own in GOALS.items() for each in own
        )
        raise ResultError(
            f"{family} on {data} has no goal",
            where="reach",
            allowed=known,
            remedy="name the directory of that data with --data-dir, or use `run`",
        )
    told: dict[str, Any] = {
        "margin": {},
        "scale": None,
        "seeds": 1,
        "goal": goal.metric,
    }
    return {**told, "tag": _tag(goal)}


def _goal(family: str, data: str) -> Goal | None:
    return next((goal for goal in GOALS.get(family, ()) if goal.data == data), None)


def _tag(goal: Goal) -> str:
    return audit.of(dataclasses.asdict(goal))


def is_of(result: Mapping[str, Any]) -> bool:
    """Whether results are of a goal, and not of pairs under margins."""
    return "goal" in result["rule"]


def stale(result: Mapping[str, Any]) -> str:
    """Why results are of another goal or size; "" if they are of the present one."""
    goal = _goal(result["family"], result["data"])
    if goal is None or _tag(goal) != result["rule"]["tag"]:
        return "the goal is another one now"
    full = audit.of(dataclasses.asdict(FAMILIES[result["family"]].full))
    return "" if audit.of(result["size"]) == full else "the size is another one now"


def wanted(result: Mapping[str, Any]) -> float:
    """The metric that every run is to reach."""
    goal = result["rule"]["goal"]
    return float(result["trivial"]["value"] if goal is None else goal)


def finding(result: Mapping[str, Any], row: Row) -> Finding:
    """Whether the runs of one setting reached the goal, in the mean.

    Args:
      result: what a file of results holds.
      row: what the rule says of the setting.
    """
    goal, sign = wanted(result), 1 if result["rule"]["higher"] else -1
    short = sign * row.mean < sign * goal
    text = f"{result['rule']['metric']} {row.mean:.4g}, wanted {goal:.4g}"
    return Finding("goal", DIFFERENT if short else EQUAL, text)
