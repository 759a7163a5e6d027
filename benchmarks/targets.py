"""What timed runs were to come to, and whether they did.

Arithmetic on the rows of `summary` only; nothing here runs, prints or draws.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks import summary
from benchmarks.summary import Row


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What was wanted and what was seen.

    Attributes:
      name: in words.
      executor: "kernels" or "xla".
      wanted: the bound, None where a figure is only reported.
      seen: the figure, None where it was not measured.
      where: the case that decided, "" where all did.
      most: whether `wanted` is the most allowed, not the least.
    """

    name: str
    executor: str
    wanted: float | None
    seen: float | None
    where: str = ""
    most: bool = False

    @property
    def met(self) -> bool | None:
        """None where nothing was wanted or measured."""
        if self.wanted is None or self.seen is None:
            return None
        return self.seen <= self.wanted if self.most else self.seen >= self.wanted


LEAST_OF_FLOAT32, LEAST_OF_NEIGHBOUR = 0.98, 0.97
MEAN_OVER_GRAPPLER, MEAN_OVER_NEIGHBOUR = 1.25, 1.15
LEAST_GAINS = {"transformer": 2.1, "mlp": 2.5, "resnet50": 1.6}
MOST_MEMORY, MOST_FIRST = 0.7, 1.3


def targets(rows: Sequence[Row]) -> list[Target]:
    """Every target under every executor that was measured."""
    found: list[Target] = []
    for executor in dict.fromkeys(row.executor for row in rows):
        own = [row for row in rows if row.executor == executor]
        timed = [row for row in own if not row.for_memory]
        found += _against_others(timed, executor)
        found += _named(timed, executor)
        found += _memory([row for row in own if row.for_memory], executor)
        found += _first_steps(own, executor)
        spent = [row.measuring for row in own if row.measuring is not None]
        name = "seconds of measuring between steps, at most"
        found.append(Target(name, executor, None, max(spent, default=None)))
        name = "rank correlation of predicted and measured gain"
        found.append(Target(name, executor, None, rank_correlation(timed)))
    return found


def _against_others(rows: Sequence[Row], executor: str) -> list[Target]:
    gains = {row.case: row.gain("amp") for row in rows}
    over_best = {row.case: row.over_best for row in rows}
    over_grappler = [summary.middle(row.over["grappler"]) for row in rows]
    return [
        _extreme("slowest model over float32", executor, LEAST_OF_FLOAT32, gains),
        _extreme(
            "slowest model over the better neighbour",
            executor,
            LEAST_OF_NEIGHBOUR,
            over_best,
        ),
        Target("geometric mean over Grappler", executor, MEAN_OVER_GRAPPLER,
               geometric_mean(over_grappler)),
        Target("geometric mean over the better neighbour", executor,
               MEAN_OVER_NEIGHBOUR, geometric_mean(over_best.values())),
    ]  # fmt: skip


def _named(rows: Sequence[Row], executor: str) -> list[Target]:
    found = []
    for row in rows:
        wanted = LEAST_GAINS.get(row.case) or LEAST_GAINS.get(row.case.split()[0])
        if wanted:
            name = f"{row.case} over float32"
            found.append(Target(name, executor, wanted, row.gain("amp")))
    return found


def _memory(rows: Sequence[Row], executor: str) -> list[Target]:
    found = []
    for row in rows:
        name = f"peak memory over float32's, {row.case.removesuffix(' memory')}"
        later = f"{name}, after the first steps"
        for kind, start in row.starts.items():
            for text, peak in ((name, start.memory), (later, start.steady_memory)):
                full, seen = summary.of_kind(text, kind), summary.middle(peak)
                found.append(Target(full, executor, MOST_MEMORY, seen, most=True))
    return found


def _first_steps(rows: Sequence[Row], executor: str) -> list[Target]:
    found = []
    for kind in summary.kinds(rows):
        name = summary.of_kind("first step over float32's", kind)
        starts = {row.case: row.starts.get(kind) for row in rows}
        seen = {
            case: summary.middle(start.over) for case, start in starts.items() if start
        }
        found.append(_extreme(name, executor, MOST_FIRST, seen, most=True))
    return found


def _extreme(
    name: str,
    executor: str,
    wanted: float,
    seen: Mapping[str, float | None],
    *,
    most: bool = False,
) -> Target:
    """A target of every case, decided by the worst."""
    known = {case: value for case, value in seen.items() if value is not None}
    if not known:
        return Target(name, executor, wanted, None, most=most)
    where = (max if most else min)(known, key=lambda case: known[case])
    return Target(name, executor, wanted, known[where], where, most)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the values that there are."""
    found = [value for value in values if value is not None]
    return statistics.geometric_mean(found) if found else None


def rank_correlation(rows: Sequence[Row]) -> float | None:
    """Spearman's, of predicted and measured gains; None for fewer than three cases.

    None too where all predictions are the same: there is nothing to rank.
    """
    pairs = [(row.predicted, row.gain("amp")) for row in rows]
    known = [(p, m) for p, m in pairs if p is not None and m is not None]
    if len(known) < 3 or any(
        len(set(column)) < 2 for column in zip(*known, strict=True)
    ):
        return None
    from scipy import stats

    return float(stats.spearmanr(known).statistic)
