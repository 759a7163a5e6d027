"""Who is drilled: settings of results with a loss scale, in their run or later.

What a drill does is in `drills`, what it is worth in `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

import amp
from convergence import again, audit, drills, dynamics, families
from convergence.arms import Arm
from convergence.task import Task


def missing(result: Mapping[str, Any]) -> list[str]:
    """The settings with a loss scale that were not drilled."""
    held = result.get("drills", {})
    every = result["settings"].items()
    return [name for name, told in every if told["scaling"] and name not in held]


def outdated(result: Mapping[str, Any]) -> list[str]:
    """The same, and those that were drilled by other code than that at hand."""
    code = drills.code(families.FAMILIES[result["family"]].task)
    held = result.get("drills", {}).items()
    return missing(result) + [name for name, drill in held if drill["code"] != code]


def drilled(
    result: Mapping[str, Any],
    arm: Arm,
    policy: amp.Policy | None,
    make: Callable[[], Task],
    seed: int,
) -> dict[str, Any]:
    """What drills find of a setting, as results hold it.

    Args:
      result: whose setting it is.
      arm: what the setting runs in.
      policy: the same, with a loss scale.
      make: makes the task.
      seed: of its first weights and batches.
    """
    assert policy is not None
    keras.utils.set_random_seed(seed)
    rule = dynamics.Rule(*result["settings"][arm.name]["scaling"])
    found = drills.faults(make(), policy, arm.planted, rule, seed)
    code = drills.code(families.FAMILIES[result["family"]].task)
    again.forget()
    return {"commit": audit.commit(), "code": code, "faults": found}


def later(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> dict[str, Any] | None:
    """The missing drills of results that were made earlier, maybe on another machine.

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
        return {
            name: drilled(result, made.arm(name), made.policy(name), made.task, seed)
            for name in missing(result)
        }
