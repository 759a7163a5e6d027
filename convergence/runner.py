"""Running families: every setting with every seed, results after each run.

The loop of one run is in `training`; what is printed is `__main__`'s matter, which
passes in whom to tell.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import amp
from convergence import results, settings
from convergence.families import Family, Size
from convergence.task import mean
from convergence.training import Spec, Trainer


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How families are run.

    Attributes:
      quick: quick sizes.
      data: directory of real data; None for the embedded data.
      dtype: "float16" or "bfloat16".
      emulate: round in float32; done anyway where the device lacks the type.
      seeds: how many; None for the family's own number.
      resume: go on with earlier results and checkpoints.
      out: directory of results.
    """

    quick: bool = False
    data: Path | None = None
    dtype: str = "float16"
    emulate: bool = False
    seeds: int | None = None
    resume: bool = False
    out: Path = results.DIRECTORY

    def size(self, family: Family) -> Size:
        return family.size(quick=self.quick, real=self.data is not None)


# Told the setting, the seed, the steps there are, and the steps taken.
Tell = Callable[[str, int, int, int], None]


def emulated(options: Options) -> bool:
    """Whether values are rounded instead of computed in 16 bits."""
    return options.emulate or options.dtype not in amp.device().native


def run(family: Family, options: Options, tell: Tell) -> dict[str, Any]:
    """Runs what is missing of a family, and returns its results.

    Raises:
      DataError: the data cannot be read.
      ResultError: earlier results cannot be gone on with.
    """
    size = options.size(family)
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    data = module.load(size, options.data)
    result, path = _begin(family, options, data.name)
    wanted = options.seeds or family.seeds
    result["seeds"] = max(wanted, result["seeds"])
    if "trivial" not in result:
        value = mean(module.trivial(data, size))
        result["trivial"] = {"name": family.trivial, "value": value}
    results.write(path, result)
    first: dict[int, list[np.ndarray]] = {}
    for setting, missing in _missing(result["runs"], wanted):
        policy = settings.policy(
            setting, dtype=options.dtype, emulate=result["emulated"], steps=size.steps
        )
        trainer = Trainer(module.make(data, size), policy)
        for seed in missing:
            if seed not in first:
                first[seed] = _first(module, data, size, seed)
            spec = Spec(
                seed=seed,
                steps=size.steps,
                first=first[seed],
                worst=family.worst,
                probed=seed == 0,
                place=_checkpoint(path, setting, seed),
            )
            advance = functools.partial(tell, setting, seed, size.steps)
            told = trainer.run(spec, advance)
            own = {"setting": setting, "seed": seed, "nodes": trainer.nodes()}
            result["runs"].append({**own, **told})
            results.write(path, result)
            spec.place.unlink(missing_ok=True)
        del trainer
        _forget()
    return result


def _missing(
    runs: Sequence[Mapping[str, Any]], wanted: int
) -> list[tuple[str, list[int]]]:
    """The settings that lack runs, each with the seeds that it lacks.

    Args:
      runs: those there are.
      wanted: how many seeds each setting is to have.
    """
    done = {(run["setting"], run["seed"]) for run in runs}
    lacking = (
        (setting, [seed for seed in range(wanted) if (setting, seed) not in done])
        for setting in settings.SETTINGS
    )
    return [(setting, seeds) for setting, seeds in lacking if seeds]


def _begin(family: Family, options: Options, data: str) -> tuple[dict[str, Any], Path]:
    """Results to add to, and their file; without `resume` earlier ones are removed."""
    result = results.head(
        family,
        options.size(family),
        data=data,
        dtype=options.dtype,
        emulated=emulated(options),
        quick=options.quick,
    )
    path = options.out / results.file_name(result)
    if options.resume:
        return results.go_on(path, result), path
    for old in path.parent.glob(f".checkpoints/{path.stem}-*"):
        old.unlink()
    return result, path


def _checkpoint(path: Path, setting: str, seed: int) -> Path:
    return path.parent / ".checkpoints" / f"{path.stem}-{setting}-{seed}.npz"


def _first(module: Any, data: Any, size: Size, seed: int) -> list[np.ndarray]:
    """The first values of a model's variables, the same in all settings."""
    keras.utils.set_random_seed(seed)
    return [variable.numpy() for variable in module.make(data, size).model.variables]


def _forget() -> None:
    """Lets go of a model, its functions, twins and loss scalers."""
    keras.backend.clear_session()
    gc.collect()
