"""What timed runs come to: gains with spread, targets, predicted against measured.

Arithmetic on the results' JSON only; nothing here runs, prints or draws. A gain is
float32's seconds over a mode's, in the same round.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import bench_models

NEIGHBOURS = ("keras", "grappler")
MIXED = (*NEIGHBOURS, "amp")
Run = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """A median over rounds, with the least and the most."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that there are; None where there is none."""
        found = sorted(value for value in values if value is not None)
        if not found:
            return None
        return cls(statistics.median(found), found[0], found[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why rounds of a mode do not count.

    Attributes:
      word: for a cell of a table.
      cause: the error, or that the loss is not finite.
    """

    word: str
    cause: str


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One case under one executor.

    Attributes:
      case, executor: which.
      seconds32: median of float32's step over rounds.
      gains: by mode, of the rounds that count; None where there is none.
      predicted: the plugin's own figure of its gain.
      memory, steady_memory: the plugin's peak over float32's, in all and after the
        first steps.
      first32, first: seconds to the end of the first step, in float32 and the plugin's.
      rewriting: most seconds that rewriting took. It comes with the second step.
      measuring: most seconds that the plugin measured operations for, between steps, to
        plan from them; what it found it keeps.
      failures: by mode, where a round failed or its loss is not finite.
      warnings: what the plugin warned of.
    """

    case: str
    executor: str
    seconds32: float | None
    gains: dict[str, Spread | None]
    predicted: float | None
    memory: Spread | None
    steady_memory: Spread | None
    first32: float | None
    first: float | None
    rewriting: float | None
    measuring: float | None
    failures: dict[str, Failure]
    warnings: tuple[str, ...]

    def gain(self, mode: str) -> float | None:
        spread = self.gains.get(mode)
        return spread.middle if spread else None

    @property
    def neighbour(self) -> float | None:
        """The gain of the better neighbour, if one of them ran."""
        return max(filter(None, map(self.gain, NEIGHBOURS)), default=None)

    @property
    def for_memory(self) -> bool:
        return self.case in bench_models.MEMORY_CASES


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row a case and executor, in the order of the table of cases."""
    found = {(run["executor"], run["case"]): None for run in runs}
    order = [*bench_models.ALL]
    keys = sorted(found, key=lambda key: (key[0], order.index(key[1])))
    return [_row(case, executor, runs) for executor, case in keys]


def _row(case: str, executor: str, runs: Sequence[Run]) -> Row:
    own = [run for run in runs if (run["case"], run["executor"]) == (case, executor)]
    good = [run for run in own if "error" not in run and _is_finite(run)]
    return Row(
        case,
        executor,
        _median(good, "float32", "seconds"),
        {mode: Spread.of(_ratios(good, "float32", mode, "seconds")) for mode in MIXED},
        _median(good, "amp", "predicted"),
        Spread.of(_ratios(good, "amp", "float32", "peak_bytes")),
        Spread.of(_ratios(good, "amp", "float32", "steady_peak_bytes")),
        _median(good, "float32", "first_step_seconds"),
        _median(good, "amp", "first_step_seconds"),
        max(_of_mode(good, "amp", "rewrite_seconds").values(), default=None),
        max(_of_mode(good, "amp", "measuring_seconds").values(), default=None),
        _failures(own),
        tuple(dict.fromkeys(text for run in own for text in run.get("warnings", ()))),
    )


def _is_finite(run: Run) -> bool:
    """Whether what a run computed is a training: NaNs are computed fast, too."""
    return run["loss_first"] is not None and run["loss_last"] is not None


def _failures(runs: Sequence[Run]) -> dict[str, Failure]:
    """The first failure of each mode; it says which round if an earlier one was fine."""
    found: dict[str, Failure] = {}
    for run in sorted(runs, key=lambda run: run["round"]):
        late = f" in round {run['round'] + 1}" if run["round"] else ""
        if "error" in run:
            failure = Failure(f"failed{late}", run["error"])
        elif not _is_finite(run):
            failure = Failure(f"not finite{late}", "the loss is not finite")
        else:
            continue
        found.setdefault(run["mode"], failure)
    return found


def _of_mode(runs: Sequence[Run], mode: str, field: str) -> dict[int, float]:
    """A figure by round, where there is one."""
    return {
        run["round"]: run[field]
        for run in runs
        if run["mode"] == mode and run.get(field) is not None
    }


def _median(runs: Sequence[Run], mode: str, field: str) -> float | None:
    found = _of_mode(runs, mode, field)
    return statistics.median(found.values()) if found else None


def _ratios(runs: Sequence[Run], above: str, below: str, field: str) -> list[float]:
    """One mode's figure over another's, round by round."""
    a, b = _of_mode(runs, above, field), _of_mode(runs, below, field)
    return [a[number] / b[number] for number in a.keys() & b.keys() if b[number] > 0]


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
        firsts = {row.case: over(row.first, row.first32) for row in own}
        found.append(
            _extreme("first step over float32's", executor, MOST_FIRST, firsts,
                     most=True)
        )  # fmt: skip
        spent = [row.measuring for row in own if row.measuring is not None]
        name = "seconds of measuring between steps, at most"
        found.append(Target(name, executor, None, max(spent, default=None)))
        name = "rank correlation of predicted and measured gain"
        found.append(Target(name, executor, None, rank_correlation(timed)))
    return found


def _against_others(rows: Sequence[Row], executor: str) -> list[Target]:
    gains = {row.case: row.gain("amp") for row in rows}
    over_best = {row.case: over(row.gain("amp"), row.neighbour) for row in rows}
    over_grappler = [over(row.gain("amp"), row.gain("grappler")) for row in rows]
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
        both = (
            (name, row.memory),
            (f"{name}, after the first steps", row.steady_memory),
        )
        for text, seen in both:
            middle = seen.middle if seen else None
            found.append(Target(text, executor, MOST_MEMORY, middle, most=True))
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


def over(a: float | None, b: float | None) -> float | None:
    """a / b, None where one is missing."""
    return a / b if a is not None and b is not None else None


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
