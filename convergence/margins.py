"""Margins: made from pairs of float32 runs that nobody judges, and frozen in a file.

`python -m convergence calibrate` trains each family in float32 and `perturbed` with
calibration seeds, and writes what follows from them to `FILE`, with a tag: a digest of
the numbers, of the rule's code, of the family's row and of the commit. `run` refuses to
begin without such an entry, or with one that something else has replaced since. Nothing
is trained here, and no result is judged.

Per family, for the loss and for the metric alike::

    deviation  what the standard deviation of a pair's difference does not exceed, with
               probability 80 %
    seeds      the least number of judged seeds with which settings that differ by noise
               alone are found equal within the target with probability 98 %; at least
               the family's own number, and no more than that where even `MOST_SEEDS`
               are too few: then seeds decide nothing, and gradients and scales may
    power      the probability that such settings are then found equal: less than 98 %
               where the family is too noisy to be judged at the target
    margin     what so many seeds need for the same at twice the noise, for 16 bits
               round activations and gradients too, and in every step; at most the
               target, and at least a quarter of it

The target of the loss is `LOSS`, that of the metric the family's `margin`. A loss that
does not fall as a model learns (`Family.falls`) has no margin and is not judged.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from amp.integration import atomic_files
from convergence import audit, equivalence
from convergence.errors import ResultError
from convergence.families import Family, Size

FILE = Path(__file__).parent / "margins.json"
LOSS = math.log(1.02)  # 2 %
LEAST = 0.25  # of the target
MOST_SEEDS = 16
CALIBRATED = 100  # the first calibration seed
JUDGED = 300  # the first judged seed; those before stay for calibrations
# Of a mixed pair, in noise: errors of gradients are about twice those of `perturbed`.
MIXED = 2.0


def key(family: str, data: str, *, quick: bool) -> str:
    """The name of an entry."""
    return "-".join([family, data] + ["quick"] * quick)


def row(family: Family, size: Size) -> str:
    """A digest of what a family's row says of a size."""
    own = dataclasses.asdict(family)
    for name, value in dataclasses.asdict(family).items():
        if isinstance(value, dict):  # a size
            own.pop(name)
    return audit.of([own, dataclasses.asdict(size)])


def loss_difference(
    own: float | None, base: float | None, scale: float | None
) -> float | None:
    """How much worse a loss is, relative: the logarithm of the quotient.

    Args:
      own, base: mean losses over the last quarter of a run; None if not finite.
      scale: what differences are divided by, of losses that may be negative.

    Returns:
      None if there is no such number.
    """
    if own is None or base is None:
        return None
    if scale is not None:
        return (own - base) / scale
    return math.log(own / base) if own > 0 and base > 0 else None


def made(
    family: Family, size: Size, pairs: Sequence[tuple[Mapping[str, Any], ...]]
) -> dict[str, Any]:
    """An entry, from calibration runs.

    Args:
      family, size: what was run.
      pairs: for each seed the run in float32 and the perturbed one.

    Raises:
      ResultError: a run diverged, or there are fewer than three pairs.
    """
    ends = [run["ends"][0] for pair in pairs for run in pair]
    if len(pairs) < 3 or None in ends:
        raise ResultError(
            f"{len(pairs)} pairs, {ends.count(None)} runs without a finite loss",
            where=f"the calibration of {family.name}",
            allowed="three pairs or more of runs that train",
            remedy="change the family's row until float32 trains",
        )
    positive = min(ends) > 0
    scale = None if positive else sum(map(abs, ends)) / len(ends)
    noise = {
        "loss": [loss_difference(b["ends"][0], a["ends"][0], scale) for a, b in pairs],
        "metric": [b["metric"] - a["metric"] for a, b in pairs],
    }
    targets = {"loss": LOSS} if family.falls else {}
    targets["metric"] = size.margin or family.margin
    deviations = {n: equivalence.upper_deviation(noise[n]) for n in targets}
    seeds = _seeds(targets, deviations, family.seeds)
    margin = {n: _margin(targets[n], deviations[n], seeds) for n in targets}
    entry = {
        "seeds": seeds,
        "margin": margin,
        "power": {n: _power(margin[n], deviations[n], seeds) for n in targets},
        "target": targets,
        "deviation": deviations,
        "scale": scale,
        "calibrated": [pair[0]["seed"] for pair in pairs],
        "pairs": noise,
        "row": row(family, size),
        "rule": audit.rule(),
        "commit": audit.commit(),
        "frozen": now(),
    }
    return {"tag": audit.of(entry), **entry}


def judged_from(seed: int | None) -> int:
    """The first judged seed, `JUDGED` or the one that is asked for.

    Raises:
      ResultError: it is one that margins may come of.
    """
    if seed is not None and seed < JUDGED:
        raise ResultError(
            f"{seed}",
            where="--first-seed",
            allowed=f"{JUDGED} or more: margins come of seeds below",
            remedy="judge other seeds than those that margins were made from",
        )
    return JUDGED if seed is None else seed


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _seeds(
    targets: Mapping[str, float], deviations: Mapping[str, float], least: int
) -> int:
    """As many as are needed, if no more than `MOST_SEEDS`; else the least."""
    found = [
        equivalence.needed_count(targets[n], deviations[n], MOST_SEEDS) for n in targets
    ]
    known = [count for count in found if count is not None]
    return max(known + [least]) if len(known) == len(found) else least


def _margin(target: float, deviation: float, seeds: int) -> float:
    needed = equivalence.needed_margin(MIXED * deviation, seeds)
    return min(target, max(needed, LEAST * target))


def _power(margin: float, deviation: float, seeds: int) -> float:
    """The probability that settings which differ by noise alone are found equal."""
    return round(equivalence.power(margin, deviation, seeds), 3)


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """All entries; none where there is no file.

    Raises:
      ResultError: it cannot be read.
    """
    if not file.exists():
        return {}
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {name: dict(entry) for name, entry in held.items()}
    except (OSError, ValueError, AttributeError) as e:
        raise _refused(f"no margins: {e}", file.name) from e


def freeze(name: str, entry: Mapping[str, Any], file: Path = FILE) -> None:
    """Adds an entry, or replaces it."""
    every = dict(sorted({**read(file), name: dict(entry)}.items()))
    atomic_files.write(file, json.dumps(every, indent=1) + "\n")


def fault(entry: Mapping[str, Any] | None, family: Family, size: Size) -> str:
    """Why an entry cannot be judged by; "" if it can."""
    if entry is None:
        return "no margins are frozen"
    if entry["tag"] != audit.of({k: v for k, v in entry.items() if k != "tag"}):
        return "the frozen margins were changed by hand"
    if entry["rule"] != audit.rule():
        return "the frozen margins are of another rule"
    if entry["row"] != row(family, size):
        return "the frozen margins are of another row of the family"
    return ""


def frozen(name: str, family: Family, size: Size, file: Path = FILE) -> dict[str, Any]:
    """The entry to judge by.

    Raises:
      ResultError: there is none, or it is of another rule or row.
    """
    entry = read(file).get(name)
    found = fault(entry, family, size)
    if found or entry is None:
        raise _refused(found, f"{file.name}, {name}")
    return entry


def _refused(found: str, where: str) -> ResultError:
    return ResultError(
        found,
        where=where,
        allowed="margins that `calibrate` froze, before judged seeds are run",
        remedy="run `python -m convergence calibrate` with the same family and data",
    )
