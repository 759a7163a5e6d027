"""The verdict: statistics of results, and the rule of README.md.

Arithmetic on what results hold; nothing is trained, read or drawn here. What each
clause of the rule says of a setting is in `clauses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from convergence import clauses, comparison, dynamics, gradient_rule
from convergence.comparison import Compared, Run
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED
from convergence.settings import FLOAT32, PERTURBED

PASSES, FAILS = "passes", "fails"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What is said of one setting.

    Attributes:
      setting: its name.
      must_pass: whether the family's verdict depends on it.
      values: the metric of each seed, in order of seeds.
      mean, deviation: of the values.
      loss, metric: compared with float32, pair by pair; None where there is no pair, a
        loss is not finite, or it is not judged.
      worst: of gradients and updates, what is furthest beyond or nearest to its limit.
      determined: quantiles judged of determined variables, and of all.
      diverged: runs that did.
      skipped: steps that changed no weight, over all runs.
      moves: how often scales grew, and backed off, over all runs.
      nodes: of the training step, in 16 bits and all.
      findings: of each clause.
    """

    setting: str
    must_pass: bool
    values: tuple[float, ...]
    mean: float
    deviation: float
    loss: Compared | None
    metric: comparison.Compared | None
    worst: gradient_rule.Judged | None
    determined: tuple[int, int]
    diverged: int
    skipped: int
    moves: tuple[int, int]
    nodes: tuple[int, int]
    findings: tuple[clauses.Finding, ...]

    @property
    def outcome(self) -> str:
        found = {finding.outcome for finding in self.findings}
        return next((o for o in (DIFFERENT, UNDECIDED) if o in found), EQUAL)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f.text for f in self.findings if f.outcome != EQUAL)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a family.

    Attributes:
      rows: of each setting that has runs.
      reasons: why it fails; empty if nothing was found to be different.
      undecided: what the evidence does not tell.
    """

    rows: tuple[Row, ...]
    reasons: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def word(self) -> str:
        return FAILS if self.reasons else UNDECIDED if self.undecided else PASSES

    @property
    def passes(self) -> bool:
        return self.word == PASSES


def verdict(result: Mapping[str, Any]) -> Verdict:
    """Judges the results of one family.

    Args:
      result: what a file of results holds.
    """
    found = rows(result)
    reasons, undecided = [], []
    wanted = len(result["settings"]) * result["seeds"]
    if len(result["runs"]) < wanted or not wanted:
        undecided.append(f"{len(result['runs'])} of {wanted} runs are done")
    if result["seeds"] < result["rule"]["seeds"]:
        asked = result["rule"]["seeds"]
        undecided.append(f"{result['seeds']} seeds, where {asked} were frozen")
    for row in found:
        told = [f"{row.setting}: {reason}" for reason in row.reasons]
        if row.setting == PERTURBED:  # then noise alone is not called equal
            undecided += told
        elif row.must_pass or row.setting == FLOAT32:
            (reasons if row.outcome == DIFFERENT else undecided).extend(told)
        elif row.setting == result["rule"]["worse"] and not _worse(row):
            reasons.append(f"{row.setting}: it is not worse, as it was to be")
    return Verdict(tuple(found), tuple(reasons), tuple(undecided))


def rows(result: Mapping[str, Any]) -> list[Row]:
    """What is said of each setting that has runs, in the order of the settings."""
    runs: dict[str, dict[int, Run]] = {setting: {} for setting in result["settings"]}
    for run in result["runs"]:
        runs[run["setting"]][run["seed"]] = run
    return [_row(result, setting, runs) for setting in runs if runs[setting]]


def found(result: Mapping[str, Any]) -> dict[str, str]:
    """What was found of each negative control that has runs; "" if nothing was.

    A control is found if a clause says that it is different: an interval that is merely
    too wide finds nothing.
    """
    told = {}
    for row in rows(result):
        if row.setting != FLOAT32:
            texts = [f.text for f in row.findings if f.outcome == DIFFERENT]
            told[row.setting] = "; ".join(texts)
    return told


def _worse(row: Row) -> bool:
    """Whether a setting is shown to diverge, to lose gradients, or to end higher."""
    found = {f.clause for f in row.findings if f.outcome == DIFFERENT}
    higher = row.loss is not None and row.loss.low > 0
    return bool(found & {"divergence", "gradients"}) or ("loss" in found and higher)


def _row(
    result: Mapping[str, Any], setting: str, runs: Mapping[str, Mapping[int, Run]]
) -> Row:
    rule, own = result["rule"], [runs[setting][s] for s in sorted(runs[setting])]
    pairs = [(run, runs[FLOAT32].get(run["seed"])) for run in own]
    told = result["settings"][setting]
    judged = gradient_rule.judged(own, rule["unit"])
    values = [run["metric"] for run in own]
    compared = {} if setting == FLOAT32 else comparison.compared(rule, pairs)
    findings = [clauses.divergence(own)]
    if setting == FLOAT32:
        findings += [clauses.learning(rule, values), clauses.beating(result)]
    elif setting != rule["worse"] and (bare := runs.get(rule["worse"] or "")):
        findings += clauses.recovered(rule, pairs, bare)
    else:
        findings += [clauses.equal(*each) for each in compared.items()]
    if told["mixed"]:
        findings += [clauses.gradients(judged), clauses.scale(told["scaling"], own)]
    return Row(
        setting=setting,
        must_pass=told["must_pass"],
        values=tuple(values),
        mean=float(np.mean(values)),
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        loss=compared.get("loss"),
        metric=compared.get("metric"),
        worst=judged[0] if judged else None,
        determined=(sum(each.determined for each in judged), len(judged)),
        diverged=sum(run["diverged"] for run in own),
        skipped=sum(len(track["held"]) for run in own for track in run["scalers"]),
        moves=_sum(dynamics.moves(run) for run in own),
        nodes=tuple(own[0]["nodes"]),
        findings=tuple(findings),
    )


def _sum(pairs: Any) -> tuple[int, int]:
    first, second = zip(*pairs, strict=True)
    return sum(first), sum(second)
