"""What the tests of the convergence suite share: small families, made-up results.

No test lives here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from convergence import results
from convergence.families import FAMILIES, Family
from convergence.probe import histogram
from convergence.settings import SETTINGS


def small(name: str, steps: int) -> Family:
    """A family whose quick size takes few steps, and where anything has learned."""
    family = FAMILIES[name]
    floor = family.worst if family.higher else float("inf")
    quick = dataclasses.replace(family.quick, steps=steps, floor=floor)
    return dataclasses.replace(family, quick=quick)


def made_up(
    name: str = "resnet", *, dtype: str = "float16", **metrics: list[float]
) -> dict[str, Any]:
    """Results with these metrics of settings, else all alike, and good gradients."""
    family = FAMILIES[name]
    result = results.head(
        family, family.quick, data="none", dtype=dtype, emulated=True, quick=True
    )
    result["rule"]["margin"] = 0.05
    values = [0.9, 0.92, 0.94, 0.91, 0.93]
    result["seeds"] = len(values)
    counts = histogram(np.array([2.0**-30, 2.0**-20, 1.0, 0.0]))
    probe = {"step": 0, "scale": 8.0, "overflow": False, "error": 0.01}
    probe |= {"weights": {"dense": counts}, "results": {"dense": counts}}
    for setting in SETTINGS:
        for seed, metric in enumerate(metrics.get(setting, values)):
            run = {"setting": setting, "seed": seed, "nodes": [3, 10], "skips": [1]}
            run |= {"metric": metric, "diverged": False, "skipped": 1}
            run |= {"scales": [[0, 8.0], [2, 4.0]], "losses": [[3.0, 2.0, None]]}
            run["probes"] = [dict(probe)] if seed == 0 else []
            result["runs"].append(run)
    return result
