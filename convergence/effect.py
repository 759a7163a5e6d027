"""Whether a loss scale has any effect: runs with it are not those with a smaller one.

A power of two changes no rounding of a normal number. Where no value is denormal under
the smaller of two scales, the runs of both are therefore the same to the last bit, and
so they should be. Where values are, the larger scale saves bits that the smaller loses,
and runs that are the same nevertheless were most likely not scaled. It compares nothing
with a frozen margin and can only refuse, so it stands beside the frozen rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import mean
from typing import Any

from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL
from convergence.settings import MIXED

RECORDED = ("losses", "ends", "metric")
# The share of a gradient's values that is denormal under the smaller scale before a bit
# has to differ for it. Of the sound float16 results in `results/` those of Wide & Deep
# alone do not differ in some seeds, at 1.1e-4; all others do, from 2e-5 on. Chosen from
# these results and not derived; a bound on false alarms is not known.
LEAST = 5e-4


def finding(result: Mapping[str, Any], setting: str) -> Finding:
    """What is found of a setting's scale, beside the sound settings named before it.

    Args:
      result: what a file of results holds.
      setting: its name; it may be that of a negative control.
    """
    told = result["settings"]
    scaled = told[setting]["scaling"] is not None
    for other in itertools.takewhile(lambda name: name != setting, told):
        if scaled and other in MIXED and _same(result, setting, other):
            lost = _denormals(result, other)
            if lost >= LEAST:
                text = (
                    f"its scale has no effect: its runs are those of {other} to the "
                    f"last bit, where {lost:.1%} of a gradient's values are denormal"
                )
                return Finding("effect", DIFFERENT, text)
    return Finding("effect", EQUAL, "")


def _same(result: Mapping[str, Any], one: str, other: str) -> bool:
    """Whether the runs of two settings are the same in every seed that both have."""
    seen = [
        {
            run["seed"]: tuple(run[key] for key in RECORDED)
            for run in _runs(result, name)
        }
        for name in (one, other)
    ]
    seeds = seen[0].keys() & seen[1].keys()
    return bool(seeds) and all(seen[0][seed] == seen[1][seed] for seed in seeds)


def _denormals(result: Mapping[str, Any], setting: str) -> float:
    """The mean share of a gradient's values, over variables and probed steps."""
    probes = [probe for run in _runs(result, setting) for probe in run["probes"]]
    shares = [share for p in probes for _, share in p.get("lost", {}).values()]
    return mean(shares) if shares else 0.0


def _runs(result: Mapping[str, Any], setting: str) -> list[Mapping[str, Any]]:
    return [run for run in result["runs"] if run["setting"] == setting]
