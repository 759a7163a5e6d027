"""Wilcoxon's signed-rank statistics of paired times: by how much is one slower?

Used by `race_rules`, which decides what follows. Nothing is timed here, and no number
but these statistics is computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of the typical difference within pairs.

    Attributes:
      low, high: its ends; each is wrong (the true one lies beyond it) with at most the
        probability that was asked for. Infinite where there are too few pairs.
    """

    low: float
    high: float


def typical(differences: Sequence[float]) -> float:
    """The pseudo-median of Hodges and Lehmann (1963): of the means of all pairs.

    A few very large differences move it no more than they move a median, and for
    normal noise it needs only 1.05 times as many differences as the mean does.
    """
    return float(np.median(_means(differences)))


def interval(differences: Sequence[float], level: float) -> Interval:
    """The interval that belongs to Wilcoxon's signed-rank test (1945), exact.

    Valid for whatever distribution the times have, if by chance alone each of a pair
    was as likely as the other to be the longer one; their order is random for that.

    Args:
      differences: one for each pair.
      level: how probable an error on each side may be; n pairs give 2**-n at best.
    """
    means = _means(differences)
    beyond = _rank_of_end(len(differences), level)
    if beyond is None:
        return Interval(-np.inf, np.inf)
    return Interval(float(means[beyond]), float(means[-1 - beyond]))


def _means(differences: Sequence[float]) -> np.ndarray:
    """The means of all pairs of values, each with itself as well, in order."""
    values = np.asarray(differences, dtype=np.float64)
    rows, columns = np.triu_indices(len(values))
    return np.sort((values[rows] + values[columns]) / 2)


@functools.lru_cache(maxsize=256)
def _rank_of_end(count: int, level: float) -> int | None:
    """The largest rank sum that has at most the probability `level`; None: not even 0.

    By chance each of the ranks 1 to `count` is in the sum or not, like a coin.
    """
    chances = np.ones(1)
    for rank in range(1, count + 1):
        chances = np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))
        chances /= 2
    sums = int(np.searchsorted(np.cumsum(chances), level * (1 + 1e-9), side="right"))
    return sums - 1 if sums else None
