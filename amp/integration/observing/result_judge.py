"""`ResultJudge`: what the results of a plan are worth that takes no gradient.

Used by `accuracy_check` and `run_checks`, which compute them. Nothing is made or run,
and no gradient is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.integration.observing import accuracy
from amp.integration.observing.accuracy import Errors, Value

# What is written to a variable may be off by half, as gradients may: it may be one.
WRITTEN = accuracy.NOISE
# The errors in float32 from which on nothing is said: what is written may be a mean
# that is 0 by construction, as the moving one behind a normalization.
_TOLD, _TOLD_WRITTEN = 0.5, 2.0**-8
# One element of so many may be off by any amount: what chose it was near a threshold.
_CHOSEN = 32
# An element that is as large, and the same in both, is a mask, and not in the norm.
_MASK = 1e4
_UNIT32 = 2.0**-24  # the unit roundoff of float32
SAMPLE = 1 << 20  # elements of a result that are looked at


def most_off(unit: float) -> float:
    """The error of a result from which on it is no rounding, but a loss of digits.

    Half of the digits of the type are gone then: operands were subtracted of which the
    first half was the same, or an error was multiplied by as much. The logits of eight
    networks of 16 to 121 layers in inference, at random weights, were off by at most
    0.022 in bfloat16, where the bound is 0.063, and 0.0062 in float16 (0.022), where
    they were not below its range.

    Args:
      unit: the unit roundoff of the 16-bit type.
    """
    return math.sqrt(unit)


def step(size: int) -> int:
    """Each which element of a result is looked at; odd, as rows often are even."""
    return -(-size // SAMPLE) | 1


def errors(found: Sequence[Value], wanted: Sequence[Value]) -> Errors:
    """The errors of what a function gives, which need not be finite.

    Args:
      found: a tensor for each result.
      wanted: the same in float32.
    """
    offs, sizes = [], []
    for one, other in zip(found, wanted, strict=True):
        off, size = _compared(_flat(one), _flat(other))
        with np.errstate(over="ignore", invalid="ignore"):
            offs.append(float(np.vdot(off, off)))
            sizes.append(float(np.vdot(size, size)))
    offs = [off if math.isfinite(off) else math.inf for off in offs]
    return Errors(tuple(map(accuracy.ratio, offs, sizes)), tuple(offs), tuple(sizes))


def _flat(value: Value) -> NDArray[Any]:
    array = np.asarray(value).reshape(-1)
    array = array[:: step(array.size)]
    if np.iscomplexobj(array):
        array = np.concatenate([array.real, array.imag])
    return array.astype(np.float64)


def _compared(
    found: NDArray[Any], wanted: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """How far elements are off, and their sizes: of those that count.

    What is not finite in float32 (the logarithm of 0, a mask) is to be the same in 16
    bits, and counts for nothing else.
    """
    with np.errstate(invalid="ignore"):
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        finite = np.isfinite(found) & np.isfinite(wanted)
        off = np.where(finite, np.abs(found - wanted), np.where(same, 0.0, np.inf))
        counts = ~same | (finite & (np.abs(wanted) < _MASK))
    size = np.where(np.isfinite(wanted), wanted, 0.0)[counts]
    off = off[counts]
    chosen = off.size // _CHOSEN
    if chosen:
        kept = np.argpartition(off, off.size - chosen)[: off.size - chosen]
        off, size = off[kept], size[kept]
    return off, size


class ResultJudge:
    """Judges the results of a function that takes no gradient by those in float32.

    There is no yardstick: nothing is trained that bears the rounding of products. What
    float32 itself does not tell is not judged: a mean that is 0 by construction is
    rounding in any type. Its error there is taken for as much smaller as its unit is.

    Args:
      exact: the results in float32, finite or not.
      unit: the unit roundoff of the 16-bit type.
      names: of the nodes that make them.
      written: for each, whether it is written to a variable, and not returned.
    """

    def __init__(
        self,
        exact: Sequence[Value],
        unit: float,
        names: Sequence[str],
        written: Sequence[bool],
    ) -> None:
        self._exact, self._names = exact, names
        most, finer = most_off(unit), unit / _UNIT32
        self._bounds = [WRITTEN if each else most for each in written]
        tell = [_TOLD_WRITTEN if each else _TOLD for each in written]
        self._most = [least * finer for least in tell]

    @property
    def roles(self) -> frozenset[Role]:
        return frozenset({Role.COMPUTE, Role.FOLLOW})

    @property
    def least(self) -> Errors:
        return self.errors(self._exact)

    def errors(self, found: Sequence[Value]) -> Errors:
        return errors(found, self._exact)

    def moved(self, again: Sequence[Value]) -> bool:
        return not self.is_fine(self.errors(again))

    def lost(self, again: Callable[[], Sequence[Value]]) -> bool:
        return False

    def faults(self, found: Errors) -> list[int]:
        pairs = zip(found.each, self._bounds, strict=True)
        excess = [error / most for error, most in pairs]
        faulty = [number for number in self._told(found) if excess[number] > 1]
        return sorted(faulty, key=lambda number: -excess[number])

    def _told(self, found: Errors) -> list[int]:
        """The numbers of the results that float32 tells; of others nothing is known.

        One that is not finite in 16 bits is: it has left the range.
        """
        pairs = enumerate(zip(found.each, self._most, strict=True))
        return [i for i, (off, most) in pairs if off <= most or math.isinf(off)]

    def is_fine(self, found: Errors) -> bool:
        return not self.faults(found)

    def loses(self, found: Errors, other: Errors) -> bool:
        return not self.is_fine(found)

    def cause(self, found: Errors) -> str:
        number = self.faults(found)[0]
        return f"result {self._names[number]} off by {found.each[number]:.2g}"

    def outcome(
        self, found: Errors, kept: int, before: tuple[Errors, int] | None = None
    ) -> AccuracyOutcome:
        told = self._told(found)
        most = max((found.each[number] for number in told), default=0.0)
        text = f"results off by {most:.2g} at most"
        if len(told) < len(found.each):
            rest = len(found.each) - len(told)
            text += f" ({rest} of {len(found.each)} are rounding in float32 too)"
        if before is not None:
            errors, more = before
            off = max(errors.each[number] for number in self._told(errors))
            text += f"; {off:.2g} before {more} nodes were kept in float32"
        return AccuracyOutcome(text, kept, most)
