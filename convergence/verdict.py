"""The verdict: statistics of results, and the rule of README.md.

Arithmetic on what results hold; nothing is trained, read or drawn here. The clauses
have modules of their own: `equivalence`, `gradient_rule`, `dynamics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convergence import dynamics, equivalence, gradient_rule, margins, trivial
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED
from convergence.settings import FLOAT32, PERTURBED

Run = Mapping[str, Any]
PASSES, FAILS = "passes", "fails"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one clause of the rule says of a setting.

    Attributes:
      clause: "divergence", "loss", "metric", "gradients", "scale" or "learning".
      outcome: of `equivalence`.
      text: what was found, if it is not equal.
    """

    clause: str
    outcome: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """Paired differences to float32.

    Attributes:
      mean, low, high: of the difference, and its 90 % interval.
      margin: within which it is to lie.
      outcome: of `equivalence`.
      found: the smallest worsening that the rule finds with 90 % power, at the noise of
        these pairs; None with fewer than two.
    """

    mean: float
    low: float
    high: float
    margin: float
    outcome: str
    found: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What is said of one setting.

    Attributes:
      setting: its name.
      must_pass: whether the family's verdict depends on it.
      values: the metric of each seed, in order of seeds.
      mean, deviation: of the values.
      loss, metric: compared with float32, pair by pair; None where there is no pair, or
        a loss is not finite.
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
    metric: Compared | None
    worst: gradient_rule.Judged | None
    determined: tuple[int, int]
    diverged: int
    skipped: int
    moves: tuple[int, int]
    nodes: tuple[int, int]
    findings: tuple[Finding, ...]

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
            reasons.append(f"{row.setting}: its loss is not worse, as it was to be")
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
    """Whether a setting is shown to be worse by more than the margin of the loss."""
    loss = row.loss
    return bool(row.diverged) or (
        loss is not None and loss.outcome == DIFFERENT and loss.low > 0
    )


def _row(
    result: Mapping[str, Any], setting: str, runs: Mapping[str, Mapping[int, Run]]
) -> Row:
    rule, own = result["rule"], [runs[setting][s] for s in sorted(runs[setting])]
    pairs = [(run, runs[FLOAT32].get(run["seed"])) for run in own]
    told = result["settings"][setting]
    judged = gradient_rule.judged(own, rule["unit"])
    values = [run["metric"] for run in own]
    loss, metric = (None, None) if setting == FLOAT32 else _compared(rule, pairs)
    findings = [_divergence(own)]
    if setting == FLOAT32:
        findings += [_learning(rule, values), _beating(result)]
    else:
        findings += [_equal("loss", loss), _equal("metric", metric)]
    if told["mixed"]:
        findings += [_gradients(judged), _scale(told["scaling"], own)]
    return Row(
        setting=setting,
        must_pass=told["must_pass"],
        values=tuple(values),
        mean=float(np.mean(values)),
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        loss=loss,
        metric=metric,
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


def _compared(
    rule: Mapping[str, Any], pairs: Sequence[tuple[Run, Run | None]]
) -> tuple[Compared | None, Compared | None]:
    """The loss over the last quarter, and the metric, beside float32's of the seed."""
    both = [(own, base) for own, base in pairs if base is not None]
    losses = [
        margins.loss_difference(own["ends"][0], base["ends"][0], rule["scale"])
        for own, base in both
    ]
    metrics = [own["metric"] - base["metric"] for own, base in both]
    return _differences("loss", rule, losses), _differences("metric", rule, metrics)


def _differences(
    name: str, rule: Mapping[str, Any], differences: Sequence[float | None]
) -> Compared | None:
    known = [d for d in differences if d is not None]
    if not known or len(known) < len(differences):
        return None
    margin, (low, high) = rule["margin"][name], equivalence.interval(known)
    noise = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return Compared(
        mean=float(np.mean(known)),
        low=low,
        high=high,
        margin=margin,
        outcome=equivalence.outcome(low, high, margin),
        found=equivalence.smallest_found(margin, noise, len(known)),
    )


def _divergence(own: Sequence[Run]) -> Finding:
    diverged = sum(run["diverged"] for run in own)
    outcome = DIFFERENT if diverged else EQUAL
    return Finding("divergence", outcome, f"{diverged} of {len(own)} runs diverged")


def _learning(rule: Mapping[str, Any], values: Sequence[float]) -> Finding:
    """Float32 is to be as good as the floor; otherwise nothing was compared."""
    mean, floor = float(np.mean(values)), rule["floor"]
    short = mean < floor if rule["higher"] else mean > floor
    text = f"has not learned: {rule['metric']} {mean:.4g}, wanted {floor:.4g}"
    return Finding("learning", DIFFERENT if short else EQUAL, text)


def _beating(result: Mapping[str, Any]) -> Finding:
    """Float32 is to beat the trivial model; otherwise the family says nothing."""
    outcome = EQUAL if trivial.beats(result) else UNDECIDED
    return Finding("learning", outcome, "does not beat the trivial model")


def _equal(clause: str, found: Compared | None) -> Finding:
    if found is None:
        return Finding(clause, DIFFERENT, f"the {clause} is not finite in every run")
    text = (
        f"the interval of the {clause}, {found.low:+.3g} … {found.high:+.3g}, "
        f"leaves ±{found.margin:.3g}"
    )
    return Finding(clause, found.outcome, text)


def _gradients(judged: Sequence[gradient_rule.Judged]) -> Finding:
    failing = [each for each in judged if not each.passes]
    if failing:
        variables = len({each.variable for each in failing})
        more = f" (and {variables - 1} more variables)" if variables > 1 else ""
        return Finding("gradients", DIFFERENT, f"{failing[0]}{more}")
    if not any(each.determined for each in judged):
        return Finding("gradients", UNDECIDED, "no gradient could be judged")
    return Finding("gradients", EQUAL, "")


def _scale(scaling: Sequence[int] | None, own: Sequence[Run]) -> Finding:
    rule = None if scaling is None else dynamics.Rule(*scaling)
    found = [
        f"seed {run['seed']}: {fault}"
        for run in own
        for fault in dynamics.faults(rule, run, len(run["ends"]))
    ]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Finding("scale", DIFFERENT if found else EQUAL, "".join(found[:1]) + more)
