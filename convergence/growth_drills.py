"""Drills of how a dynamic loss scale moves when nothing overflows, and at its ends.

Used by `drills`, and by the others for what a scale is to be. Steps are taken by `rig`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from convergence import bits, dynamics
from convergence.rig import Rig, Scaled


def grown(rig: Rig) -> Iterator[str]:
    """Of the end of an interval."""
    interval, scale = rig.rule.interval, 2.0**rig.exponent
    last, parts = rig.take(good=interval - 1), range(len(rig.parts))
    for at in parts:
        when = f"after {interval} good steps"
        yield from scale_is(rig, last.scaled[at], scale * 2, 0, when)
    if interval > 1:
        early = rig.take(good=interval - 2)
        for at in parts:
            when = f"after {interval - 1} good steps"
            yield from scale_is(rig, early.scaled[at], scale, interval - 1, when)
    differ = [
        rig.name(place)
        for place in range(len(rig.held))
        if place not in rig.scaler_places
        and not bits.same(last.after[place], rig.usual.after[place])
    ]
    if differ:
        yield f"where the scale grows, {differ[0]} moves otherwise"
    most = 2.0**dynamics.HIGHEST
    top = rig.take(dict.fromkeys(parts, most), interval - 1)
    for at, part in enumerate(rig.parts):
        due = most if part.weights & top.moved else most / 2
        yield from scale_is(rig, top.scaled[at], due, 0, "at the largest scale")
    # Float16 may overflow there; by hand the scale's rule takes a good step.
    yield from _by_hand(rig, most, interval - 1, True, "the largest")
    yield from _by_hand(rig, 2.0**dynamics.LOWEST, 0, False, "the least")


def _by_hand(
    rig: Rig, scale: float, good: int, finite: bool, which: str
) -> Iterator[str]:
    """Of a scale that neither a good step nor an overflow moves."""
    rig.set_scales(dict.fromkeys(range(len(rig.parts)), scale), good)
    for part in rig.parts:
        part.scaler.update(finite)
    for now in rig.scaled():
        yield from scale_is(rig, now, scale, 0, f"by hand, at {which} scale")


def scale_is(
    rig: Rig, now: Scaled, scale: float, good: int, when: str
) -> Iterator[str]:
    if now.scale != scale:
        told = f"{power(now.scale)}, where {power(scale)} was due"
        yield f"{when} the scale is {told}"
    elif rig.rule.interval and now.good != good:
        yield f"{when} {now.good} good steps are counted, where {good} were due"


def power(scale: float) -> str:
    """A scale, as a power of two where it is one."""
    exact = scale > 0 and math.log2(scale).is_integer()
    return f"2^{math.log2(scale):g}" if exact else f"{scale:g}"
