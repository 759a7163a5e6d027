"""Plans the steps of results anew, with the code at hand, for `staleness`.

Traces one step a setting, for the CPU that ran it; trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convergence import again, plans, steps
from convergence.again import Again


def replan(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> dict[str, str] | None:
    """The digests of the plans of all settings, as `plans.plan` gives them.

    Args:
      result: what a file of results holds.
      directories: of real data; the embedded data are there anyway.

    Returns:
      None where the data of these results is not there.
    """
    with again.made(result, directories) as made:
        return None if made is None else _planned(made)


def _planned(made: Again) -> dict[str, str]:
    found = {}
    for name in made.result["settings"]:
        policy, task = made.policy(name), made.task()
        step = steps.Step(task, policy, made.arm(name).planted)
        for stage in task.stages if policy is not None else ():
            number = next(n for n in range(made.size.steps) if task.stage(n) == stage)
            step(stage, steps.tensors(task.batch(0, number)))
        found[name] = plans.plan(step).digest
        del step, task
        again.forget()
    return found
