"""Drills of steps that overflow, by one value of a gradient or by a scale too large.

Used by `drills` and `row_drills`. Steps are taken by `rig`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from convergence import dynamics, terms
from convergence.float32_drills import moves_otherwise
from convergence.growth_drills import power, scale_is
from convergence.rig import Rig, TakenStep

# A scale with which gradients overflow: in float16 where they are over 2^-84; bfloat16
# has float32's range, and takes more.
FAR = {"float16": 2.0**100, "bfloat16": math.inf}
# Two rows of a gradient are finite, and their sum is not.
LARGE = 1.5 * 2.0**127
# Of a part's variables, whose gradients alone are not finite: at so many it is seen
# that nothing moves, at all others that the optimizers' counts stand still.
SOME = 3
# With more variables, each of the two settings with a scale takes every second one.
MANY = 32


def not_finite(rig: Rig) -> Iterator[str]:
    """Of one gradient that is not finite: what should have been left out."""
    good = rig.rule.interval // 2
    for at, part in enumerate(rig.parts):
        some = np.linspace(0, len(part.terms) - 1, SOME).round().astype(int)
        for number, place in enumerate(dict.fromkeys(some.tolist())):
            for turn, value in enumerate((math.inf, -math.inf, math.nan)):
                where = (number + turn) % terms.PLACES
                factors = rig.factors(part.terms[place], value, where)
                first = number == turn == 0
                told = [*left_out(rig, at, factors, good, again=first)]
                if told:  # the other gradients would tell the same
                    yield from told
                    return
    yield from _each_not_finite(rig, good)


def _each_not_finite(rig: Rig, good: int) -> Iterator[str]:
    """The same of each gradient, as the counts of optimizers and scalers tell."""
    rig.step.put(rig.held)
    for at, part in enumerate(rig.parts):
        half = len(part.terms) > MANY
        first = int(half and bool(rig.rule.interval))
        for term in part.terms[first :: 1 + half]:
            factors = rig.factors(term, math.inf, term % terms.PLACES)
            # Otherwise so many overflows in a row are looked into, and told of.
            rig.put(scalers=True)
            rig.set_scales({}, good)
            before, counts = rig.scaled(), rig.counts()
            rig.step(rig.stage, rig.with_factors(factors))
            grown = rig.scaled()[at].skipped - before[at].skipped
            stood = rig.counts()[at] == counts[at]
            if stood and grown == len(part.optimizers):
                continue
            told = [*left_out(rig, at, factors, good)]
            yield from told or ["one gradient that is inf skips no update"]
            return


def left_out(
    rig: Rig, at: int, factors: np.ndarray, good: int, *, again: bool = False
) -> Iterator[str]:
    """Of a step in which a gradient of one part is not finite."""
    taken = rig.take({}, good, factors)
    where = f"one gradient that is {np.sum(factors[factors != 0]):g}"
    yield from skipped(rig, at, taken, f"after {where}")
    if again:
        yield from _next_moves(rig, at, taken)


def skipped(rig: Rig, at: int, taken: TakenStep, when: str) -> Iterator[str]:
    """Of a step that an update had to be left out of."""
    part, was, now = rig.parts[at], taken.before[at], taken.scaled[at]
    if moved := part.places & taken.moved:
        names = ", ".join(map(rig.name, sorted(moved)[:3]))
        more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
        yield f"{when} moved {names}{more}"
    if any(np.any(taken.gradients[i]) for i in part.gradients):
        yield f"{when} gradients are not 0"
    yield from _statistics_move(rig, taken, when)
    due_skips = len(part.optimizers)
    if now.skipped != was.skipped + due_skips:
        told = f"{now.skipped - was.skipped}, where {due_skips} were due"
        yield f"{when} the count of skipped updates grows by {told}"
    due = max(was.scale / 2, 2.0**dynamics.LOWEST)
    scale = due if rig.rule.interval else was.scale
    yield from scale_is(rig, now, scale, 0, when)


def _statistics_move(rig: Rig, taken: TakenStep, when: str) -> Iterator[str]:
    """Of what a step moves without training it: a skipped one moves it as well."""
    for place in sorted(rig.statistics):
        usual = rig.usual.after[place]
        if moves_otherwise(rig, place, taken.after[place], usual):
            yield f"{when} {rig.name(place)} moves otherwise than usual"
            return


def _next_moves(rig: Rig, at: int, taken: TakenStep) -> Iterator[str]:
    """Of the step after it, at the weights that there were, with their scalers."""
    state = [
        taken.after[place] if place in rig.scaler_places else value
        for place, value in enumerate(rig.held)
    ]
    after, part = rig.take_from(state, rig.batch), rig.parts[at]
    when = "in the step after a skipped one"
    if not part.weights & after.moved:
        yield f"{when} no weight moves"
    scale, at_once = taken.scaled[at].scale, rig.rule.interval == 1
    due = (scale * 2, 0) if at_once else (scale, 1)
    yield from scale_is(rig, after.scaled[at], *due, when)


def overflown(rig: Rig) -> Iterator[str]:
    """Of an overflow of each part alone."""
    far, good = FAR[rig.dtype], rig.rule.interval // 2
    for at, part in enumerate(rig.parts):
        taken = rig.take({at: far}, good)
        yield from skipped(rig, at, taken, f"after the scale {power(far)}")
        for other in rig.parts:
            apart = other.scaler is not part.scaler
            if apart and not other.places & taken.moved:
                yield "an overflow of one loss holds back the update by another"


def two_rows(rig: Rig) -> Iterator[str]:
    """Of slices of a gradient that are finite and whose sum is not."""
    for at, part in enumerate(rig.parts):
        for term in part.tables[:1]:
            factors = rig.factors(term, LARGE, 0)
            factors[term, 1] = LARGE  # of the same row, as `terms` reads it
            taken = rig.take({at: 1.0}, rig.rule.interval // 2, factors)
            when = "after two equal rows of a gradient whose sum is inf"
            yield from skipped(rig, at, taken, when)
