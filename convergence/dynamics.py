"""Whether a loss scale moved as its rule says: grown, backed off, and seldom skipping.

A rule is written here once more, in whole numbers, and replayed from the steps at which
the optimizer stood still; nothing of the package under trial is asked. No training.

A run tells of each scaler a `Track`: the scale before each step at which it changed,
and the steps that changed no weight, as the optimizers' own count of steps shows. So an
overflow after which weights move all the same is seen, and so is a step left out
without one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LOWEST, HIGHEST = -14, 24  # exponents between which a dynamic scale moves
FIRST = 15  # exponent of its first scale
DESCENT = 16  # skipped steps that finding the first scale may take


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How a scale moves.

    Attributes:
      first: exponent of the first scale.
      interval: steps without an overflow after which it doubles; 0 if it never moves.
    """

    first: int
    interval: int


@dataclasses.dataclass(frozen=True, slots=True)
class Track:
    """What one scaler did in a run.

    Attributes:
      begin, count: the first step that it scaled, and how many in a row.
      path: (step, scale before it) for the first step and after each change.
      held: steps after which no optimizer that it serves had moved on.
    """

    begin: int
    count: int
    path: tuple[tuple[int, float], ...]
    held: tuple[int, ...]


def tracks(run: Mapping[str, Any]) -> list[Track]:
    """The tracks that results hold of a run."""
    return [
        Track(
            begin=told["begin"],
            count=told["count"],
            path=tuple((step, scale) for step, scale in told["path"]),
            held=tuple(told["held"]),
        )
        for told in run["scalers"]
    ]


def replayed(rule: Rule, track: Track) -> list[tuple[int, float]]:
    """The path that a rule gives for the steps at which a track stood still.

    ::

        a step held back: scale halves (not below 2^-14), the count begins anew
        any other:        count += 1; at `interval` it begins anew and the scale doubles
                          (not beyond 2^24)
    """
    exponent, good, path = rule.first, 0, []
    held = set(track.held)
    for step in range(track.begin, track.begin + track.count):
        if not path or path[-1][1] != 2.0**exponent:
            path.append((step, 2.0**exponent))
        if not rule.interval:
            continue
        if step in held:
            exponent, good = max(exponent - 1, LOWEST), 0
            continue
        good += 1
        if good == rule.interval:
            exponent, good = min(exponent + 1, HIGHEST), 0
    return path


def most_skips(rule: Rule, count: int) -> int:
    """How many of `count` steps a sound scaler may skip.

    A constant scale, one in a hundred. A dynamic one what it takes to come down to the
    first scale that fits, and twice for each time that it may have grown: once because
    it grew too far, and once because gradients grew.
    """
    if not rule.interval:
        return count // 100
    return DESCENT + 2 * (count // rule.interval + 1)


def faults(rule: Rule | None, run: Mapping[str, Any], parts: int) -> list[str]:
    """What was wrong with a run's loss scales; empty if nothing was.

    Args:
      rule: of the setting; None where nothing is scaled.
      run: what results hold of it.
      parts: losses of a step, each of which has a scaler of its own.
    """
    found = tracks(run)
    if rule is None:
        return ["there is a loss scale where none is due"] if found else []
    if len(found) < parts:
        return [f"{len(found)} loss scales, where {parts} were due"]
    return [fault for track in found for fault in _faults(rule, track)]


def _faults(rule: Rule, track: Track) -> Iterator[str]:
    due = replayed(rule, track)
    if list(track.path) != due:
        yield _apart(track, due)
    most = most_skips(rule, track.count)
    if len(track.held) > most:
        yield f"{len(track.held)} of {track.count} steps skipped, {most} allowed"


def _apart(track: Track, due: Sequence[tuple[int, float]]) -> str:
    """Where a path leaves the one that was due, in words."""
    end = track.begin + track.count
    for step in range(track.begin, end):
        ours, theirs = _at(track.path, step), _at(due, step)
        if ours != theirs:
            held = "skipped" if step - 1 in track.held else "taken"
            return (
                f"the scale is {_power(ours)} before step {step}, where "
                f"{_power(theirs)} was due (step {step - 1} was {held})"
            )
    return "the path of the scale is not written as it should be"


def _at(path: Sequence[tuple[int, float]], step: int) -> float:
    """The scale before a step; NaN before a path begins."""
    return next((s for at, s in reversed(path) if at <= step), math.nan)


def _power(scale: float) -> str:
    if not scale > 0 or math.isinf(scale):
        return f"{scale:g}"
    return f"2^{math.log2(scale):g}"


def moves(run: Mapping[str, Any]) -> tuple[int, int]:
    """How often the scales of a run grew, and how often they backed off."""
    pairs = [
        (before[1], after[1])
        for track in tracks(run)
        for before, after in zip(track.path, track.path[1:], strict=False)
    ]
    return sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
