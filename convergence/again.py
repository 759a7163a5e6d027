"""The tasks of results, made again with the code at hand, on any machine.

Used by what plans their steps anew and by what drills them; trains nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras

import amp
from amp.graph_rewrite.cost import shipped_devices
from amp.integration.measuring import hardware
from convergence import arms, families
from convergence.arms import Arm
from convergence.errors import DataError
from convergence.families import Size
from convergence.task import Task

# Of a GPU that `shipped_devices` does not know by its name; results do not tell it.
NEWEST = (9, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """What results were made of.

    Attributes:
      result: what their file holds.
      size: of their runs.
      module: of their task.
      data: that it loaded.
    """

    result: Mapping[str, Any]
    size: Size
    module: Any
    data: Any

    def task(self) -> Task:
        """The task, made anew."""
        made: Task = self.module.make(self.data, self.size)
        return made

    def arm(self, setting: str) -> Arm:
        """What a setting of the results runs in."""
        known = (*arms.compared(), *arms.controlled())
        return next(arm for arm in known if arm.name == setting)

    def policy(self, setting: str) -> amp.Policy | None:
        """Its policy; None for float32."""
        result = self.result
        return self.arm(setting).policy(
            dtype=result["dtype"], emulate=result["emulated"], steps=self.size.steps
        )


@contextlib.contextmanager
def made(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> Iterator[Again | None]:
    """Has this machine plan as the one of the results did, within the scope.

    What that one's kernels round decides what may be low. Steps run on this CPU, which
    gives the same values without 16-bit arithmetic, only slower; a GPU need not be
    here.

    Args:
      result: what a file of results holds.
      directories: of real data; the embedded data are there anyway.

    Yields:
      None where the data of these results is not there.
    """
    family = families.FAMILIES[result["family"]]
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    for directory in (None, *directories):
        size = family.size(quick=result["quick"], real=directory is not None)
        with contextlib.suppress(DataError):
            data = module.load(size, directory)
            if data.name == result["data"]:
                break
    else:
        yield None
        return
    machine = result["machine"]
    flags, gpu = frozenset(machine["flags"]), machine.get("gpu")
    with contextlib.ExitStack() as patches:
        enter, patch = patches.enter_context, mock.patch.object
        enter(patch(hardware, "cpu_flags", return_value=flags))
        if gpu:
            device = shipped_devices.of_gpu(gpu, NEWEST)
            enter(patch(hardware, "shipped", return_value=device))
        hardware.device.cache_clear()
        try:
            yield Again(result, size, module, data)
        finally:
            hardware.device.cache_clear()


def forget() -> None:
    """Lets go of a model, its functions, twins and loss scalers."""
    keras.backend.clear_session()
    gc.collect()
