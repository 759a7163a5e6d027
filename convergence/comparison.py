"""Settings beside float32, pair by pair: differences, their interval, what they say.

Of results as they are in files. Which setting has to pass is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convergence import equivalence, margins

Run = Mapping[str, Any]
Pair = tuple[Run, Run | None]  # of a seed: the setting's run, and float32's


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


def compared(
    rule: Mapping[str, Any], pairs: Sequence[Pair]
) -> dict[str, Compared | None]:
    """What has a margin, beside float32's of the same seed.

    Returns:
      "metric", and where it has a margin "loss", of the last quarter of the steps; None
      where there is no pair, or one is not finite.
    """
    found = paired(rule, pairs)
    return {n: _differences(m, found[n]) for n, m in rule["margin"].items()}


def paired(
    rule: Mapping[str, Any], pairs: Sequence[Pair]
) -> dict[str, list[float | None]]:
    """The differences that `compared` is of; a loss's is None if it is not finite."""
    both = [(own, base) for own, base in pairs if base is not None]
    losses = [
        margins.loss_difference(own["ends"][0], base["ends"][0], rule["scale"])
        for own, base in both
    ]
    metrics = [own["metric"] - base["metric"] for own, base in both]
    return {"loss": losses, "metric": metrics}


def _differences(margin: float, differences: Sequence[float | None]) -> Compared | None:
    known = [d for d in differences if d is not None]
    if not known or len(known) < len(differences):
        return None
    low, high = equivalence.interval(known)
    noise = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return Compared(
        mean=float(np.mean(known)),
        low=low,
        high=high,
        margin=margin,
        outcome=equivalence.outcome(low, high, margin),
        found=equivalence.smallest_found(margin, noise, len(known)),
    )
