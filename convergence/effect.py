"""Whether a loss scale has any effect: runs with it are not those with a smaller one.

A power of two changes no rounding of a normal number. Where no value is denormal under
the smaller of two scales, the runs of both are therefore the same to the last bit, and
so they should be. Where values are, the larger scale saves bits that the smaller loses,
and runs that are the same nevertheless were not scaled. No margin enters into this, and
it finds nothing that is merely unlikely; so it stands beside the frozen rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL

Run = Mapping[str, Any]
# The share of a gradient's values that is denormal under the smaller scale before a bit
# has to differ for it. Of the sound float16 results in `results/` those of Wide & Deep
# alone do not differ in some seeds, at 1.1e-4; all others do, from 2e-5 on.
LEAST = 5e-4


def finding(result: Mapping[str, Any], setting: str) -> Finding:
    """What is found of a setting's scale, beside the settings named before it.

    Args:
      result: what a file of results holds.
      setting: its name.
    """
    mixed = [name for name, told in result["settings"].items() if told["mixed"]]
    own = _runs(result, setting)
    if result["settings"][setting]["scaling"] is not None:
        for other in mixed[: mixed.index(setting)]:
            beside = _runs(result, other)
            seeds = own.keys() & beside.keys()
            lost = mean([0.0, *_denormals(beside[seed] for seed in seeds)])
            same = all(_recorded(own[s]) == _recorded(beside[s]) for s in seeds)
            if seeds and same and lost >= LEAST:
                text = (
                    f"its scale has no effect: its runs are those of {other} to the "
                    f"last bit, where {lost:.1%} of a gradient's values are denormal"
                )
                return Finding("effect", DIFFERENT, text)
    return Finding("effect", EQUAL, "")


def _runs(result: Mapping[str, Any], setting: str) -> dict[int, Run]:
    return {r["seed"]: r for r in result["runs"] if r["setting"] == setting}


def _recorded(run: Run) -> tuple[Any, ...]:
    return run["losses"], run["ends"], run["metric"]


def _denormals(runs: Iterator[Run]) -> list[float]:
    """The share of each variable's values at each probed step."""
    probes = [probe.get("lost", {}) for run in runs for probe in run["probes"]]
    return [share for lost in probes for _, share in lost.values()]
