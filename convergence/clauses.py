"""The clauses of the rule of README.md, each on the runs of one setting.

A clause says equal, different or undecided, and why. What follows for a family is
`verdict`'s matter, not this module's; the arithmetic is in `equivalence`, `recovery`,
`gradient_rule` and `dynamics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convergence import comparison, dynamics, gradient_rule, recovery, trivial
from convergence.comparison import Compared, Pair, Run
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one clause of the rule says of a setting.

    Attributes:
      clause: "divergence", "loss", "metric", "gradients", "scale" or "learning", or of
        those beside the rule, which `judge.BESIDE` names.
      outcome: of `equivalence`.
      text: what was found, if it is not equal.
    """

    clause: str
    outcome: str
    text: str


def divergence(own: Sequence[Run]) -> Finding:
    diverged = sum(run["diverged"] for run in own)
    outcome = DIFFERENT if diverged else EQUAL
    return Finding("divergence", outcome, f"{diverged} of {len(own)} runs diverged")


def learning(rule: Mapping[str, Any], values: Sequence[float]) -> Finding:
    """Float32 is to be as good as the floor; otherwise nothing was compared."""
    mean, floor = float(np.mean(values)), rule["floor"]
    short = mean < floor if rule["higher"] else mean > floor
    text = f"has not learned: {rule['metric']} {mean:.4g}, wanted {floor:.4g}"
    return Finding("learning", DIFFERENT if short else EQUAL, text)


def beating(result: Mapping[str, Any]) -> Finding:
    """Float32 is to beat the trivial model; otherwise the family says nothing."""
    outcome = EQUAL if trivial.beats(result) else UNDECIDED
    return Finding("learning", outcome, "does not beat the trivial model")


def equal(clause: str, found: Compared | None) -> Finding:
    if found is None:
        return Finding(clause, DIFFERENT, f"the {clause} is not finite in every run")
    text = (
        f"the interval of the {clause}, {found.low:+.3g} … {found.high:+.3g}, "
        f"leaves ±{found.margin:.3g}"
    )
    return Finding(clause, found.outcome, text)


def gradients(judged: Sequence[gradient_rule.Judged]) -> Finding:
    failing = [each for each in judged if not each.passes]
    if failing:
        variables = len({each.variable for each in failing})
        more = f" (and {variables - 1} more variables)" if variables > 1 else ""
        return Finding("gradients", DIFFERENT, f"{failing[0]}{more}")
    if not any(each.determined for each in judged):
        return Finding("gradients", UNDECIDED, "no gradient could be judged")
    return Finding("gradients", EQUAL, "")


def scale(scaling: Sequence[int] | None, own: Sequence[Run]) -> Finding:
    rule = None if scaling is None else dynamics.Rule(*scaling)
    found = [
        f"seed {run['seed']}: {fault}"
        for run in own
        for fault in dynamics.faults(rule, run, len(run["ends"]))
    ]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Finding("scale", DIFFERENT if found else EQUAL, "".join(found[:1]) + more)


def recovered(
    rule: Mapping[str, Any], pairs: Sequence[Pair], bare: Mapping[int, Run]
) -> list[Finding]:
    """Of a family that needs scaling: equal, or more than half of the loss recovered.

    Args:
      rule: of the results.
      pairs: runs of the setting, each with float32's of its seed.
      bare: runs without scaling, by seed.
    """
    known = [(o, b) for o, b in pairs if b is not None and o["seed"] in bare]
    beside = comparison.compared(rule, known)
    own = comparison.paired(rule, known)
    lost = comparison.paired(rule, [(bare[run["seed"]], base) for run, base in known])
    signs = {"loss": 1, "metric": -1 if rule["higher"] else 1}
    found = []
    for clause, told in beside.items():
        if told is None or told.outcome == EQUAL:
            found.append(equal(clause, told))
        else:
            found.append(_recovered(clause, own[clause], lost[clause], signs[clause]))
    return found


def _recovered(
    clause: str,
    own: Sequence[float | None],
    lost: Sequence[float | None],
    sign: int,
) -> Finding:
    """The finding of one clause; `sign`: -1 where more is better."""
    yardstick = [None if x is None else sign * x for x in lost]
    worse = [sign * x for x in own if x is not None]  # `equal` took the others
    outcome, (low, high) = recovery.outcome(worse, yardstick)
    text = (
        f"the {clause} is worse than float32's by half of what it is unscaled, and "
        f"{low:+.3g} … {high:+.3g}; under 0 was wanted"
    )
    return Finding(clause, outcome, text)
