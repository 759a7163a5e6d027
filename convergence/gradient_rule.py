"""The rule for gradients and updates: every variable, against what noise alone does.

Arithmetic on observations that results hold; nothing is computed from tensors here.

An *observation* is of one variable at one probed step of one run. Its *error* is
|a - b| / |b|, Euclidean norms, where b is the gradient (or the update: weights after a
step minus before) in float32 and a the same in the run's setting, at the same weights,
optimizer state and batch. Its *noise* is the error of float32 itself at weights that
are off by at most the 16-bit type's unit roundoff u, each by a random share; of several
draws the largest. Its *share* is |b| over the norm of all variables' b together, its
*even share* what that would be if all values that are not 0 were of one size.

Over all observations of a variable (all probed steps of all seeds) two quantiles are
judged, the median and the 90th percentile; E is that of the errors, N of the noise:

1. N <= 1/8 (*determined*): E <= 8 N, or E <= 32 u; and E <= 1/2 in any case. A scale is
   a power of two, so one that is wrongly put on or taken off leaves at least twice, or
   at most half, of what a gradient should be; one that vanishes has the error 1.
2. N > 1/8: the gradient is not determined by weights in 16 bits (the bias of a key in
   attention: exactly 0, but for rounding). E <= 8 N, or error times share <= 32 u.
3. An update is not determined where the gradient is not. Case 2, or E <= 2, or error
   times share <= twice the even share: what divides by the gradient's size, such as
   Adam, takes a whole step of what is rounding alone, in float32 too, and as large a
   one for each value as elsewhere; or none, as long as the rounding is under Adam's
   epsilon. It may point anywhere, but two vectors of one size differ by no more than
   twice that size.

Of an update only those values are compared whose gradient in float32 is at least 32 u
of the root of its mean square. Case 1 lets a gradient be off by as much, and so the
others may be 0 or of either sign; Adam's first step moves each by the learning rate.

Mixed precision rounds not only weights but also activations and their gradients: a
random error about twice the noise. 8 leaves a factor of 4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

QUANTILES = (0.5, 0.9)
FACTOR = 8.0  # of the noise
FLOOR = 32.0  # of the unit roundoff
MOST = 0.5
ANYWHERE = 2.0  # two vectors of one size, whatever their directions
DETERMINED = 1 / 8  # noise up to which a gradient is determined
KINDS = ("gradient", "update")

# Of one variable at one step: error (None: not finite), noise (likewise), share, even
# share.
Observation = Sequence[float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """One quantile of one variable.

    Attributes:
      kind: "gradient" or "update".
      variable: its path.
      quantile: of its observations.
      error, limit: what was found, and up to what it passes.
      determined: whether `Case 1` was asked.
    """

    kind: str
    variable: str
    quantile: float
    error: float
    limit: float
    determined: bool

    @property
    def passes(self) -> bool:
        return self.error <= self.limit

    @property
    def excess(self) -> float:
        """The error over its limit: how far from passing."""
        return self.error / self.limit if self.limit else math.inf

    def __str__(self) -> str:
        part = "median" if self.quantile == 0.5 else f"{self.quantile:.0%} quantile"
        return (
            f"the {self.kind} of {self.variable} is off by {self.error:.3g} "
            f"({part}), allowed is {self.limit:.3g}"
        )


def judged(runs: Iterable[Mapping[str, Any]], unit: float) -> list[Judged]:
    """Judges every variable that was observed, the worst first.

    Args:
      runs: what results hold of runs of one setting.
      unit: unit roundoff of the 16-bit type.
    """
    probes = [probe for run in runs for probe in run["probes"]]
    found: list[Judged] = []
    loose: set[tuple[str, float]] = set()
    for kind in KINDS:
        together: dict[str, list[Observation]] = {}
        for probe in probes:
            for variable, observation in probe.get(kind, {}).items():
                together.setdefault(variable, []).append(observation)
        for variable, seen in together.items():
            for q in QUANTILES:
                known = (variable, q) not in loose
                found.append(_judged((kind, variable, q), seen, unit, known=known))
        loose = {(j.variable, j.quantile) for j in found if not j.determined}
    return sorted(found, key=lambda each: -each.excess)


def _judged(
    what: tuple[str, str, float],
    seen: Sequence[Observation],
    unit: float,
    *,
    known: bool,
) -> Judged:
    """One quantile of one variable; `known`: whether its gradient is determined."""
    quantile = what[2]
    values = np.array([[math.inf if x is None else x for x in o] for o in seen], float)
    error, noise = (_quantile(values[:, column], quantile) for column in (0, 1))
    limit = max(FACTOR * noise, FLOOR * unit)
    if noise <= DETERMINED and known:  # Case 1
        return Judged(*what, error, min(limit, MOST), determined=True)
    if not known:  # Case 3
        limit = max(limit, ANYWHERE)
    if error > limit:  # Case 2
        # What is not finite stays so, whatever its share.
        errors, shares = values[:, 0], np.where(np.isinf(values[:, 0]), 1, values[:, 2])
        error = _quantile(errors * shares, quantile)
        even = 0.0 if known else float(values[:, 3].min())
        limit = max(FLOOR * unit, ANYWHERE * even)
    return Judged(*what, error, limit, determined=False)


def _quantile(values: np.ndarray, quantile: float) -> float:
    """The smallest value that at least this share of values does not exceed."""
    ordered = np.sort(values)
    return float(ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)])


def loss_of_values(runs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Of each variable, the mean shares of its gradient's values that were lost.

    Returns:
      The share that became 0, and the share that became a denormal, which keeps only
      some of its bits; of values that are not 0 in float32. The most lost come first.
    """
    together: dict[str, list[Sequence[float]]] = {}
    for probe in (probe for run in runs for probe in run["probes"]):
        for variable, shares in probe.get("lost", {}).items():
            together.setdefault(variable, []).append(shares)
    means = {v: tuple(np.mean(s, axis=0).tolist()) for v, s in together.items()}
    ranked = sorted(means, key=lambda v: means[v], reverse=True)
    return {v: (means[v][0], means[v][1]) for v in ranked}
