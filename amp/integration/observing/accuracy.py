"""Judges the gradients of a plan by those of float32 and of products only.

Used by `accuracy_check`, which computes them. Here it is decided whether a plan is at
fault, and which nodes to keep in float32; no function is made or run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

# A plan may have this many times the error of products only: over all gradients, where
# the yardstick of the tests has the same bound, and in the gradient of one variable,
# whose error is a sum of fewer roundings and so varies more (docs/decisions/0019).
ALL, ONE = 2.0, 4.0
# Where products only lose half of a gradient it is noise, and no plan is judged by it.
NOISE = 0.5
# Below this a gradient may be 0 in float32 for its range alone, which ends at 2**-126,
# as what it is computed from is.
_LEAST = 2.0**-100
_PART = 1 << 13  # elements at a time: they stay in the caches, and in one thread
FEW = 8  # so many nodes, or a 20th of all, may be kept without asking which of them

Value: TypeAlias = NDArray[Any]  # a gradient, or what else a function gives
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Errors:
    """The distances of gradients from those in float32, in units of the latter.

    Attributes:
      each: of the gradient of each variable; 0 for one that is 0 in float32, but
        infinite if it is not finite.
      offs: the squares of the distances themselves, infinite if not finite.
      sizes: the squares of their units.
    """

    each: tuple[float, ...]
    offs: tuple[float, ...]
    sizes: tuple[float, ...]

    @property
    def all(self) -> float:
        """The distance of all gradients together."""
        return self.of(range(len(self.each)))

    def of(self, numbers: Sequence[int]) -> float:
        """The distance of some gradients together."""
        size = sum(self.sizes[number] for number in numbers)
        off = sum(self.offs[number] for number in numbers)
        return ratio(off, size)

    @property
    def finite(self) -> bool:
        """Whether every gradient is finite."""
        return math.isfinite(sum(self.offs))


def errors(found: Sequence[Value], wanted: Sequence[Value]) -> Errors:
    """The errors of gradients.

    Args:
      found: a gradient for each variable, finite or not.
      wanted: the same in float32, all finite.
    """
    offs = tuple(_square(f, w) for f, w in zip(found, wanted, strict=True))
    sizes = tuple(_square(w, None) for w in wanted)
    return Errors(tuple(map(ratio, offs, sizes)), offs, sizes)


def apart(one: Sequence[Value], other: Sequence[Value]) -> Errors:
    """The errors of gradients by others, or of these by them: the larger of each.

    So one that is 0 in either is found; unless it is too small for float32's range.

    Args:
      one, other: a gradient for each variable, `other` all finite.
    """
    found = errors(one, other)
    sizes = (_square(each, None) for each in one)
    back = (
        ratio(off, size) if size > _LEAST**2 else 0.0
        for off, size in zip(found.offs, sizes, strict=True)
    )
    return dataclasses.replace(found, each=tuple(map(max, found.each, back)))


def ratio(off: float, size: float) -> float:
    """The root of the quotient of two sums of squares."""
    if not size:
        return 0.0 if math.isfinite(off) else math.inf
    return math.sqrt(off / size)


def _square(values: Value, less: Value | None) -> float:
    """The sum of squares of `values - less`; infinite if any is not finite."""
    total, flat = 0.0, values.reshape(-1)
    others = None if less is None else less.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _PART):
            off = flat[start : start + _PART].astype(np.float64)
            if others is not None:
                off -= others[start : start + _PART]
            total += float(np.vdot(off, off))
    return total if math.isfinite(total) else math.inf


def faults(plan: Errors, products: Errors, unit: float) -> list[int]:
    """The gradients by which a plan is worse than it may be, the worst first.

    Args:
      plan: the plan's errors.
      products: those with products only in 16 bits, finite.
      unit: the unit roundoff of the 16-bit type. Errors below it are no fault: a single
        rounding of an operand makes them.

    Returns:
      Numbers of gradients; empty if the plan is as good as it may be.
    """
    judged = [i for i, error in enumerate(products.each) if error <= NOISE]
    worse = [i for i in judged if plan.each[i] > ONE * max(products.each[i], unit)]
    if not worse and plan.of(judged) > ALL * max(products.of(judged), unit):
        worse = [i for i in judged if plan.each[i] > ALL * max(products.each[i], unit)]
        worse = worse or [max(judged, key=lambda i: plan.offs[i])]
    if not plan.finite and not worse:
        worse = [i for i, error in enumerate(plan.each) if not math.isfinite(error)]
    return sorted(worse, key=lambda i: -_excess(plan, products, unit, i))


def loses(plan: Errors, other: Errors, unit: float) -> bool:
    """Whether a plan makes noise of a gradient that another plan tells.

    Both may be as good as their own products allow; then one of them has products whose
    rounding the gradient does not bear: the local means of which a variance is the
    difference, say.

    Args:
      plan, other: their errors, on the same batch.
      unit: the unit roundoff of the 16-bit type. A gradient that is smaller than this,
        by all of them together, may be rounding in float32 as well (of a bias before a
        batch normalization) and is not looked at.
    """
    if not plan.finite:
        return other.finite
    least = unit**2 * sum(plan.sizes)
    triples = zip(plan.each, other.each, plan.sizes, strict=True)
    return any(
        off > max(NOISE, ONE * told)
        for off, told, size in triples
        if told <= NOISE and size > least
    )


def spoilt(plan: Errors, without: Errors, unit: float) -> list[int]:
    """The values whose error is mostly made by some of a plan's nodes, the worst first.

    Args:
      plan: the errors with these nodes in 16 bits.
      without: those without.
      unit: the unit roundoff of the 16-bit type. Values that are smaller than this, by
        all of them together, are not looked at (see `loses`).
    """
    least = unit**2 * sum(plan.sizes)
    most = [ONE * max(told, unit) for told in without.each]
    found = [
        number
        for number, off in enumerate(plan.each)
        if off > most[number]
        and without.each[number] <= NOISE
        and plan.sizes[number] > least
    ]
    return sorted(found, key=lambda number: -plan.each[number] / most[number])


def bent(alone: Errors, products: Errors, unit: float) -> list[int]:
    """The gradients that depend on the loss scale by more than rounding makes of them.

    A power of two changes no float32 but those that leave its range, and any other
    scale rounds 2**13 (float16) or 2**16 (bfloat16) times finer than the products do.

    Args:
      alone: how far gradients in float32 with a scale and without are `apart`.
      products: those with products only in 16 bits, both with the same scale.
      unit: the unit roundoff of the 16-bit type.
    """
    if not alone.finite:
        return []
    pairs = enumerate(zip(alone.each, products.each, strict=True))
    return [i for i, (off, least) in pairs if least <= NOISE and off > max(least, unit)]


def _excess(plan: Errors, products: Errors, unit: float, index: int) -> float:
    return plan.each[index] / max(products.each[index], unit)


@dataclasses.dataclass(frozen=True, slots=True)
class Suspects(Generic[_T]):
    """The nodes that may be at fault.

    Attributes:
      nodes: in the order of the graph.
      nearest: the numbers of those from which only gradients at fault are computed.
    """

    nodes: Sequence[_T]
    nearest: frozenset[int] = frozenset()


def search(
    suspects: Suspects[Any],
    is_fine: Callable[[frozenset[int]], bool],
    spent: Callable[[], bool],
) -> frozenset[int]:
    """The nodes to keep in float32 for a plan to be fine, found by bisection::

        if the nearest suspects are few, and the plan is fine without them: these
        kept = none; none of the first `fine` nodes is at fault
        while the rest without `kept` is not fine:
          the first node that is at fault = bisection over how many of the first nodes
              may be 16-bit, with `kept` and all others in float32
          keep it

    Every set that is returned was found to be fine, or is all of the nodes. If the time
    is spent before the search has ended, the nodes that were not cleared are all kept.

    Args:
      suspects: the nodes.
      is_fine: takes the numbers of the nodes that stay float32.
      spent: whether the search has to end.
    """
    count, nearest = len(suspects.nodes), suspects.nearest
    if 0 < len(nearest) <= max(FEW, count // 20) and is_fine(nearest):
        return nearest
    kept: frozenset[int] = frozenset()
    fine = 0
    while fine < count:
        if fine and is_fine(kept):
            return kept
        low, high = fine, count  # the first `low` may be 16-bit, the first `high` not
        while high - low > 1:
            if spent():
                return kept | frozenset(range(low, count))
            middle = (low + high) // 2
            if is_fine(kept | frozenset(range(middle, count))):
                low = middle
            else:
                high = middle
        kept |= {low}
        fine = low + 1
        if fine == count or spent():
            return kept | frozenset(range(fine, count))
    return kept
