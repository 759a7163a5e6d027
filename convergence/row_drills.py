"""Drills of many steps in a row, as of a long run.

Used by `drills`. Steps are taken by `rig`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from convergence import bits
from convergence.growth_drills import scale_is
from convergence.overflow_drills import left_out, overflown
from convergence.rig import Rig

LATE = 64  # steps in a row
LONG = 2**20  # what counts are set on by then, as after so many steps


def late(rig: Rig, scale: float) -> Iterator[str]:
    """Of many steps in a row, in which scalers alone are not put back.

    So none overflows, and gradients are those of the first step. The last step is
    one of a long run, as counts tell.
    """
    scales = dict.fromkeys(range(len(rig.parts)), scale)
    good = max(rig.rule.interval - LATE // 2, 0)  # it grows once at least
    rig.step.put(rig.held)
    for number in range(1, LATE + 2):
        rig.put(scalers=False)
        if number > LATE:
            for part in rig.parts:
                calls = np.eye(1, part.scaler.tally.shape[0], dtype=np.int64)[0]
                part.scaler.tally.assign_add(calls * LONG)
        rig.set_scales(scales, good)
        told = [*_of_a_row(rig, scale, good)]
        if told:
            yield from (f"in step {number} of a row {text}" for text in told)
            return
        good = good + 1 if good + 1 < rig.rule.interval else 0
    rig.put(scalers=False)
    for part in rig.parts:
        for optimizer in part.optimizers:
            optimizer.iterations.assign_add(LONG)
    rig.hold()
    late = [*_each_overflows(rig)]
    yield from (f"after {LATE} steps in a row, {text}" for text in late)


def _of_a_row(rig: Rig, scale: float, good: int) -> Iterator[str]:
    """Of the next step of a row."""
    before, counts = rig.scaled(), rig.counts()
    found = rig.step(rig.stage, rig.batch)[1]
    after, moved = rig.scaled(), rig.counts()
    for at, part in enumerate(rig.parts):
        pairs = zip(counts[at], moved[at], strict=True)
        stood = any(now == was for was, now in pairs)
        if stood or after[at].skipped != before[at].skipped:
            yield "an update is skipped without an overflow"
        ours = [found[i].numpy() for i in part.gradients]
        if bits.apart(ours, [rig.usual.gradients[i] for i in part.gradients]):
            yield "gradients are not those of the first"
        grows = rig.rule.interval == good + 1
        due = (scale * 2, 0) if grows else (scale, good + 1)
        yield from scale_is(rig, after[at], *due, "without an overflow")


def _each_overflows(rig: Rig) -> Iterator[str]:
    """Of an overflow of each part, by one gradient, and by a scale too large."""
    for at, part in enumerate(rig.parts):
        factors = rig.factors(part.terms[-1], math.inf)
        yield from left_out(rig, at, factors, rig.rule.interval // 2)
    if rig.rule.interval:
        yield from overflown(rig)
