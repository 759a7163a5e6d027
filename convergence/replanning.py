"""Plans the steps of results anew, with the code at hand, for `staleness`.

Traces one step a setting; trains nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from convergence import arms, families, plans, steps
from convergence.errors import DataError
from convergence.families import Size


def replan(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> dict[str, str] | None:
    """The digests of the plans of all settings, as `plans.plan` gives them.

    Args:
      result: what a file of results holds.
      directories: of real data; the embedded data are there anyway.

    Returns:
      None where the data of these results is not there, or the row has changed.
    """
    family = families.FAMILIES[result["family"]]
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    for directory in (None, *directories):
        size = family.size(quick=result["quick"], real=directory is not None)
        with contextlib.suppress(DataError):
            data = module.load(size, directory)
            if data.name == result["data"]:
                return _planned(result, module, data, size)
    return None


def _planned(
    result: Mapping[str, Any], module: Any, data: Any, size: Size
) -> dict[str, str]:
    """The digests, of a task's module on its data."""
    known = {arm.name: arm for arm in (*arms.compared(), *arms.controlled())}
    found = {}
    for name in result["settings"]:
        policy = known[name].policy(
            dtype=result["dtype"], emulate=result["emulated"], steps=size.steps
        )
        task = module.make(data, size)
        step = steps.Step(task, policy, known[name].planted)
        for stage in task.stages if policy is not None else ():
            number = next(n for n in range(size.steps) if task.stage(n) == stage)
            step(stage, steps.tensors(task.batch(0, number)))
        found[name] = plans.plan(step).digest
        del step, task
        keras.backend.clear_session()
        gc.collect()
    return found
