"""Drills of what is float32 whatever the type: hooks, statistics, and losses.

Used by `drills`. Steps are taken by `rig`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convergence import bits
from convergence.rig import Rig, TakenStep
from convergence.steps import Step
from convergence.task import Batch

# Of one gradient in eight the last bits may differ between two functions, as sums have
# another order (`bits.APART`), and a momentum that is nearly 0 by more of itself: a
# faulty move is one that is off by so large a share of it, or differs in most values.
OTHERWISE = 2.0**-4
# So many examples have a loss each; one in eighty is near to 16 bits by chance.
EXAMPLES = 5
FEW_LOSSES = 3  # that 16 bits hold so many by chance has a probability under 2^-36
# A rate of 0.99 is known to 2^-24, and so what is left of 1 to 2^-17; twice two bits.
RATE = 2.0**-15


def unhooked(rig: Rig, kept: Step, plain: Step) -> Iterator[str]:
    """Of the same step with hooks and without them.

    Args:
      kept: the step in a mixed scope in which all stays float32.
      plain: the step past the hooks.
    """
    alone = _after(rig, plain.in_float32)
    yield from _moved_by_hooks(rig, _after(rig, rig.step.in_float32), alone, "float32")
    scope = "a mixed scope of float32 alone"
    yield from _moved_by_hooks(rig, _after(rig, kept), alone, scope)


def _after(rig: Rig, take: Callable[[int, Batch], Any]) -> list[np.ndarray]:
    rig.step.put(rig.held)
    rig.set_scales({})
    take(rig.stage, rig.batch)
    return rig.step.values()


def _moved_by_hooks(
    rig: Rig, hooked: list[np.ndarray], alone: list[np.ndarray], where: str
) -> Iterator[str]:
    places = [p for p, v in enumerate(rig.held) if v.dtype == np.float32]
    places = [p for p in places if p not in rig.scaler_places]
    differ = [p for p in places if moves_otherwise(rig, p, hooked[p], alone[p])]
    if not differ and bits.apart(
        [hooked[p] for p in places], [alone[p] for p in places]
    ):
        differ = places
    if differ:
        more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
        told = f"{rig.name(differ[0])}{more} otherwise than without them"
        yield f"in {where} the hooks for gradients and optimizers move {told}"


def moves_otherwise(rig: Rig, at: int, ours: np.ndarray, other: np.ndarray) -> bool:
    """Whether a step moves a place of the state otherwise than another one."""
    if bits.same(ours, other):
        return False
    if ours.dtype.kind != "f":
        return True
    off = bits.norm([np.subtract(ours, other, dtype=np.float64)])
    return not off <= OTHERWISE * bits.norm([np.subtract(other, rig.held[at])])


def statistics(rig: Rig, taken: TakenStep) -> Iterator[str]:
    """Of what a step moves without training it: batch norm's means."""
    moved = {
        place: taken.after[place]
        for place in sorted(rig.statistics & taken.moved)
        if taken.after[place].dtype == np.float32
    }
    low = [place for place, values in moved.items() if bits.in_16_bits(values)]
    for place in low:
        yield f"{rig.name(place)} is held in 16 bits"
    every = [values.ravel() for values in moved.values()]
    if not low and every and bits.in_16_bits(np.concatenate(every)):
        yield "statistics that move with a step are held in 16 bits"
    if not low:
        yield from _means(rig)


def _means(rig: Rig) -> Iterator[str]:
    """Of what moving means move by: at 0 and at 1 a step shows it, and the rate."""
    places = [
        place
        for place in sorted(rig.statistics & rig.usual.moved)
        if rig.held[place].dtype == np.float32
    ]
    begun = []
    for value in (0.0, 1.0):
        state = list(rig.held)
        for place in places:
            state[place] = np.full_like(state[place], value)
        begun.append(rig.take_from(state, rig.batch).after)
    for place in places:
        zero, one = (after[place] for after in begun)
        rate = 1 - float(np.median(one - zero))
        if 0 < rate < 1 and bits.near_16_bits(zero / rate, RATE):
            yield f"what {rig.name(place)} moves by is held in 16 bits"


def losses(rig: Rig) -> Iterator[str]:
    """Of means, and of one example that is there many times: its own."""
    for values in np.transpose(rig.losses):
        if bits.in_16_bits(values, FEW_LOSSES):
            yield "a loss is held in 16 bits"
            return
    rig.step.put(rig.held)
    alone = [
        rig.take_from(rig.held, rig.repeated(number)).losses
        for number in range(min(EXAMPLES, rig.examples))
    ]
    for values in np.transpose(alone):
        if bits.near_16_bits(values, few=EXAMPLES):
            yield "the loss of one example is held in 16 bits"
