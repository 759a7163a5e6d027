"""Plans the steps of results anew, with the code at hand, for `staleness`.

Traces one step a setting, for the CPU that ran it; trains nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras

from amp.integration.measuring import hardware
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
                with _as_of(result["machine"]["flags"]):
                    return _planned(result, module, data, size)
    return None


@contextlib.contextmanager
def _as_of(flags: Sequence[str]) -> Iterator[None]:
    """Plans for a CPU with these flags: what its kernels round decides what may be low.

    The step then runs on this CPU, which gives the same values without 16-bit
    arithmetic, only slower.
    """
    with mock.patch.object(hardware, "cpu_flags", return_value=frozenset(flags)):
        hardware.device.cache_clear()
        try:
            yield
        finally:
            hardware.device.cache_clear()


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
