"""The verdict: statistics of results, and the rule of README.md.

Arithmetic on what results hold; nothing is trained, read or drawn here.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from convergence.settings import FLOAT32, MUST_PASS, SETTINGS

LEVEL = 0.90  # two one-sided tests at 5 % each
# A power of two that is wrongly there or not leaves at least twice or at most half.
MOST_ERROR = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What is said of one setting.

    Attributes:
      setting: its name.
      must_pass: whether the family's verdict depends on it.
      values: the metric of each seed, in order of seeds.
      mean, deviation: of the values.
      difference, low, high: mean difference to float32, and its interval; None for
        float32.
      p: of the Kolmogorov–Smirnov test; None for float32.
      loss: mean over seeds of the loss at the end (of the first part, over the last
        point of its curve); None where a run has no finite one.
      error: the gradient error; None for float32 and where no step could tell.
      diverged: runs that did.
      skipped: steps that loss scaling skipped, over all runs.
      nodes: of the training step, in 16 bits and all.
      reasons: why it fails; empty if it passes.
    """

    setting: str
    must_pass: bool
    values: tuple[float, ...]
    mean: float
    deviation: float
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    loss: float | None
    error: float | None
    diverged: int
    skipped: int
    nodes: tuple[int, int]
    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a family.

    Attributes:
      rows: of each setting that has runs.
      reasons: why it fails; empty if it passes.
    """

    rows: tuple[Row, ...]
    reasons: tuple[str, ...]

    @property
    def passes(self) -> bool:
        return not self.reasons


def verdict(result: Mapping[str, Any]) -> Verdict:
    """Judges the results of one family.

    Args:
      result: what a file of results holds.
    """
    runs: dict[str, dict[int, Any]] = {setting: {} for setting in SETTINGS}
    for run in result["runs"]:
        runs[run["setting"]][run["seed"]] = run
    rows = [_row(result, setting, runs) for setting in SETTINGS if runs[setting]]
    reasons = []
    wanted = len(SETTINGS) * result["seeds"]
    if len(result["runs"]) < wanted or not wanted:
        reasons.append(f"{len(result['runs'])} of {wanted} runs are done")
    for row in rows:
        if row.must_pass or row.setting == FLOAT32:
            reasons += [f"{row.setting}: {reason}" for reason in row.reasons]
    return Verdict(tuple(rows), tuple(reasons))


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of the mean of paired differences, Student's t.

    Infinite for fewer than two.
    """
    count = len(differences)
    mean = float(np.mean(differences))
    if count < 2:
        return -math.inf, math.inf
    width = stats.t.ppf((1 + LEVEL) / 2, count - 1) * np.std(differences, ddof=1)
    half = float(width / math.sqrt(count))
    return mean - half, mean + half


def _row(
    result: Mapping[str, Any], setting: str, runs: Mapping[str, Mapping[int, Any]]
) -> Row:
    own, base = runs[setting], runs[FLOAT32]
    values = [own[seed]["metric"] for seed in sorted(own)]
    pairs = [own[s]["metric"] - base[s]["metric"] for s in sorted(own) if s in base]
    compared = setting != FLOAT32 and bool(pairs)
    low, high = interval(pairs) if compared else (None, None)
    told = {
        "error": gradient_error(own.values()) if setting != FLOAT32 else None,
        "diverged": sum(run["diverged"] for run in own.values()),
    }
    if setting == FLOAT32:
        reasons = _float32_reasons(result["rule"], values, told["diverged"])
    else:
        reasons = _reasons(result["rule"]["margin"], low, high, **told)
    others = [run["metric"] for run in base.values()]
    ends = [run["losses"][0][-1] for run in own.values()]
    return Row(
        setting=setting,
        must_pass=setting in MUST_PASS[result["dtype"]],
        values=tuple(values),
        mean=float(np.mean(values)),
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        difference=float(np.mean(pairs)) if compared else None,
        low=low,
        high=high,
        p=_kolmogorov_smirnov(values, others) if compared else None,
        loss=None if None in ends else float(np.mean(ends)),
        skipped=sum(run["skipped"] for run in own.values()),
        nodes=tuple(next(iter(own.values()))["nodes"]),
        reasons=reasons,
        **told,
    )


def _kolmogorov_smirnov(values: Sequence[float], others: Sequence[float]) -> float:
    with warnings.catch_warnings():
        # Where p is 1 rounding takes SciPy's exact sum beyond it: it warns, and says 1.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(stats.ks_2samp(values, others, method="exact").pvalue)


def _float32_reasons(
    rule: Mapping[str, Any], values: Sequence[float], diverged: int
) -> tuple[str, ...]:
    mean, floor = float(np.mean(values)), rule["floor"]
    if diverged:
        return (f"{diverged} runs diverged",)
    if mean < floor if rule["higher"] else mean > floor:
        return (f"has not learned: {rule['metric']} {mean:.4g}, wanted {floor:.4g}",)
    return ()


def _reasons(
    margin: float,
    low: float | None,
    high: float | None,
    *,
    error: float | None,
    diverged: int,
) -> tuple[str, ...]:
    found = []
    if diverged:
        found.append(f"{diverged} runs diverged")
    if low is None or high is None:
        found.append("there is no float32 run to compare with")
    elif not -margin <= low <= high <= margin:
        found.append(f"the interval {low:.3g} … {high:.3g} leaves ±{margin:.3g}")
    if error is None:
        found.append("no gradient was finite where it was looked at")
    elif not error < MOST_ERROR:
        found.append(f"the gradient error is {error:.3g}")
    return tuple(found)


def gradient_error(runs: Iterable[Mapping[str, Any]]) -> float | None:
    """The median gradient error over the steps looked at; None if none could tell.

    Where a gradient is not finite and the scaler has not found so, it is infinite.
    """
    found = [
        math.inf if probe["error"] is None else probe["error"]
        for run in runs
        for probe in run["probes"]
        if not probe["overflow"]
    ]
    return float(np.median(found)) if found else None
