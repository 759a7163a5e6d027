"""What timed runs come to: gains with spread, what they take to begin, failures.

Arithmetic on the results' JSON only; nothing here runs, prints or draws. A gain is
float32's seconds over a mode's. It and all other ratios are of runs of one round.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import bench_models

NEIGHBOURS = ("keras", "grappler")
MIXED = (*NEIGHBOURS, "amp")
MODES = ("float32", *MIXED)
EXECUTORS = ("kernels", "xla")
# A job's first run looks for a plan, later ones begin with what it found. Results from
# before November 27, 2026 do not tell which a round was.
FIRST, LATER, UNTOLD = "first run", "later runs", ""
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
class Start:
    """What runs of one kind take to begin, and to hold.

    Attributes:
      memory, steady_memory: the plugin's peak over float32's, in all and after the
        first steps.
      first32, first: seconds to the end of the first step, in float32 and the plugin's.
      over: the plugin's over float32's, round by round.
    """

    memory: Spread | None
    steady_memory: Spread | None
    first32: float | None
    first: float | None
    over: Spread | None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One case under one executor.

    Attributes:
      case, executor: which.
      seconds32: median of float32's step over rounds.
      gains: by mode, of the rounds that count; None where there is none.
      over: by neighbour, its seconds over the plugin's in the same round.
      predicted: the plugin's own figure of its gain.
      starts: by kind of run (`FIRST`, `LATER`, `UNTOLD`), those there were.
      rewriting: most seconds that rewriting took, measuring not counted. It comes with
        the second step.
      measuring: most seconds that the plugin measured operations for, to plan from
        them; what it found it keeps.
      failures: by mode, where a round failed or its loss is not finite.
      warnings: what the plugin warned of.
    """

    case: str
    executor: str
    seconds32: float | None
    gains: dict[str, Spread | None]
    over: dict[str, Spread | None]
    predicted: float | None
    starts: dict[str, Start]
    rewriting: float | None
    measuring: float | None
    failures: dict[str, Failure]
    warnings: tuple[str, ...]

    def gain(self, mode: str) -> float | None:
        return middle(self.gains.get(mode))

    @property
    def over_best(self) -> float | None:
        """Over the better neighbour, if one of them ran."""
        known = [spread.middle for spread in self.over.values() if spread]
        return min(known, default=None)

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
        {mode: Spread.of(_ratios(good, mode, "amp", "seconds")) for mode in NEIGHBOURS},
        _median(good, "amp", "predicted"),
        _starts(own, good),
        max(_of_mode(good, "amp", "rewrite_seconds").values(), default=None),
        max(_of_mode(good, "amp", "measuring_seconds").values(), default=None),
        _failures(own),
        tuple(dict.fromkeys(text for run in own for text in run.get("warnings", ()))),
    )


def _starts(own: Sequence[Run], good: Sequence[Run]) -> dict[str, Start]:
    """By kind, in their order; also of a kind of which no run counts."""
    there = {_kind(run) for run in own}
    return {
        kind: _start([run for run in good if _kind(run) == kind])
        for kind in (FIRST, LATER, UNTOLD)
        if kind in there
    }


def _start(runs: Sequence[Run]) -> Start:
    return Start(
        Spread.of(_ratios(runs, "amp", "float32", "peak_bytes")),
        Spread.of(_ratios(runs, "amp", "float32", "steady_peak_bytes")),
        _median(runs, "float32", "first_step_seconds"),
        _median(runs, "amp", "first_step_seconds"),
        Spread.of(_ratios(runs, "amp", "float32", "first_step_seconds")),
    )


def _kind(run: Run) -> str:
    if "first_run" not in run:
        return UNTOLD
    return FIRST if run["first_run"] else LATER


def kinds(rows: Iterable[Row]) -> list[str]:
    """The kinds of run that rows have figures of, in their order."""
    there = {kind for row in rows for kind in row.starts}
    return [kind for kind in (FIRST, LATER, UNTOLD) if kind in there]


def of_kind(name: str, kind: str) -> str:
    """A figure's name with the kind of run that it is of."""
    return f"{name}, {kind}" if kind else name


def _is_finite(run: Run) -> bool:
    """Whether what a run computed is a training: NaNs are computed fast, too."""
    return run["loss_first"] is not None and run["loss_last"] is not None


def _failures(runs: Sequence[Run]) -> dict[str, Failure]:
    """The first failure of each mode; after the first round it says in which."""
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


def middle(spread: Spread | None) -> float | None:
    """The median, None where there is none."""
    return spread.middle if spread else None
