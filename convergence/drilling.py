"""Who is drilled: settings of results with a loss scale, in their run or later.

What a drill does is in `drills`, what it is worth in `judge`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

import amp
from convergence import again, audit, drilled, drills, dynamics, families
from convergence.arms import Arm
from convergence.task import Task


def missing(result: Mapping[str, Any]) -> list[str]:
    """The settings with a loss scale that these drills were not made of."""
    held, by = result.get("drills", {}), drilled.by()
    return [
        name
        for name, told in result["settings"].items()
        if told["scaling"] and held.get(name, {}).get("by") != by
    ]


def outdated(result: Mapping[str, Any], task: str) -> list[str]:
    """The same, and those of which the step or the package was another.

    Args:
      result: what a file of results holds.
      task: the family's module in `convergence.tasks`.
    """
    code = drilled.code(task)
    held = result.get("drills", {}).items()
    lacking = missing(result)
    changed = (name for name, drill in held if drill.get("code") != code)
    return lacking + [name for name in changed if name not in lacking]


@dataclasses.dataclass(frozen=True, slots=True)
class Drill:
    """A setting that is to be drilled.

    Attributes:
      arm: what it runs in.
      policy: the same, with a loss scale.
      rule: how that moves.
      task: the family's module in `convergence.tasks`.
      make: makes the task.
    """

    arm: Arm
    policy: amp.Policy | None
    rule: dynamics.Rule
    task: str
    make: Callable[[], Task]

    def found(self, seed: int) -> dict[str, Any]:
        """What drills find, as results hold it; `seed`: of weights and batches."""
        assert self.policy is not None
        keras.utils.set_random_seed(seed)
        planted = self.arm.planted
        faults = drills.faults(self.make(), self.policy, planted, self.rule, seed)
        again.forget()
        return {
            "commit": audit.commit(),
            "code": drilled.code(self.task),
            "by": drilled.by(),
            "faults": faults,
        }


def rule(result: Mapping[str, Any], setting: str) -> dynamics.Rule:
    """How the loss scale of a setting moves."""
    return dynamics.Rule(*result["settings"][setting]["scaling"])


def later(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> dict[str, Any] | None:
    """Drills, missing or outdated, of results of earlier, maybe of another machine.

    A drill's outcome is known to the last bit, whatever kernels run.

    Args:
      result: what a file of results holds.
      directories: of real data; the embedded data are there anyway.

    Returns:
      By setting; None where the data of these results is not there.
    """
    with again.made(result, directories) as made:
        if made is None:
            return None
        seed = min(run["seed"] for run in result["runs"])
        task = families.FAMILIES[result["family"]].task
        found = {}
        for name in outdated(result, task):
            arm, policy = made.arm(name), made.policy(name)
            drill = Drill(arm, policy, rule(result, name), task, made.task)
            found[name] = drill.found(seed)
        return found
