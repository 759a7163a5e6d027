"""What the tests of the convergence suite share: small families, made-up results.

No test lives here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convergence import arms, audit, drilled, margins, results
from convergence.dynamics import Rule, Track, replayed
from convergence.families import FAMILIES, Family
from convergence.probe import histogram
from convergence.results import Subject
from convergence.settings import FLOAT32, MIXED

VALUES = [0.9, 0.92, 0.94, 0.91, 0.93]
STEPS = 40


def small(name: str, steps: int, **model: Any) -> Family:
    """A family whose quick size takes few steps, and where anything has learned."""
    family = FAMILIES[name]
    floor = family.worst if family.higher else float("inf")
    model = {**family.quick.model, **model}
    quick = dataclasses.replace(family.quick, steps=steps, floor=floor, model=model)
    return dataclasses.replace(family, quick=quick)


def pairs(noise: float, seeds: int = 5) -> list[tuple[dict[str, Any], ...]]:
    """Calibration runs whose losses and metrics are off by noise, to and fro."""
    return [
        tuple(
            {"seed": 100 + seed, "ends": [2.0 + off], "metric": 0.9 + off}
            for off in (0.0, noise * (-1) ** seed)
        )
        for seed in range(seeds)
    ]


def ready(family: Family, out: Path, *, wide: bool = True) -> Path:
    """A file with margins of a family's quick size; if wide, any loss passes."""
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    name = module.load(family.quick, None).name
    file = out / "frozen" / "margins.json"
    file.parent.mkdir(exist_ok=True, parents=True)
    entry = margins.made(family, family.quick, pairs(1e-4))
    if wide:
        entry = _tagged(entry, {"margin": {"loss": 1e9, "metric": 1e9}, "seeds": 2})
    margins.freeze(margins.key(family.name, name, quick=True), entry, file)
    return file


def _tagged(entry: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Margins with other values, and the tag that they then have."""
    held = {key: value for key, value in {**entry, **other}.items() if key != "tag"}
    return {"tag": audit.of(held), **held}


@functools.cache
def _entry(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    entry = margins.made(family, family.quick, pairs(1e-4))
    return _tagged(entry, {"margin": {"loss": 0.02, "metric": 0.05}, "seeds": 5})


def made_up(
    name: str = "resnet",
    *,
    dtype: str = "float16",
    losses: Mapping[str, list[float]] | None = None,
    **metrics: list[float],
) -> dict[str, Any]:
    """Results with these metrics and losses of settings, else all alike and sound."""
    family = FAMILIES[name]
    subject = Subject(family, family.quick, "none", dtype, emulated=True, quick=True)
    told = {arm.name: arm.told(dtype, STEPS) for arm in arms.compared()}
    result = results.head(subject, told, _entry(name))
    result["seeds"] = len(VALUES)
    scaled = [setting for setting in told if told[setting]["scaling"]]
    drill = {"commit": "c", "by": drilled.by(), "faults": []}
    drill["code"] = drilled.code(family.task)
    result["drills"] = {setting: dict(drill) for setting in scaled}
    result["trivial"] = {"name": family.trivial, "value": 0.2}
    for setting in told:
        values = metrics.get(setting, VALUES)
        ends = (losses or {}).get(setting, [2.0] * len(values))
        for seed, (metric, end) in enumerate(zip(values, ends, strict=True)):
            result["runs"].append(_run(setting, seed, metric, end, told))
    return result


def _run(
    setting: str, seed: int, metric: float, end: float, told: Mapping[str, Any]
) -> dict[str, Any]:
    run = {"setting": setting, "seed": seed, "nodes": [3, 10], "plan": "p"}
    run |= {"commit": "c", "seconds": 6.0, "metric": metric, "diverged": False}
    last = 2.0 + 1e-4 * list(told).index(setting)  # no two settings are the same runs
    run |= {"ends": [end], "losses": [[3.0, last, None]], "scalers": [], "probes": []}
    scaling = told[setting]["scaling"]
    if scaling:
        held = [1] if setting == "dynamic" else []
        path = replayed(Rule(*scaling), Track(0, STEPS, (), tuple(held)))
        track = {"begin": 0, "count": STEPS, "path": [list(p) for p in path]}
        run["scalers"] = [track | {"held": held}]
    counts = histogram(np.array([2.0**-30, 2.0**-20, 1.0, 0.0]))
    probe: dict[str, Any] = {"step": 0, "scale": 8.0}
    if setting in MIXED:
        seen = {"dense/kernel": [0.001, 0.001, 0.9], "dense/bias": [0.002, 0.001, 0.4]}
        probe |= {"overflow": False, "gradient": seen, "update": dict(seen)}
        probe["lost"] = {"dense/kernel": [0.25, 0.5], "dense/bias": [0.0, 0.125]}
    if seed == 0:
        probe["weights"] = {"dense": counts}
    if seed == 0 and setting == FLOAT32:
        probe["results"] = {"dense": counts}
    run["probes"] = [probe]
    return run
