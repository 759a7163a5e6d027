"""Figures of one tensor in float32 and in the twin: error, overflow, underflow.

Arrays in, numbers out; no graph and no text may enter.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from amp.graph_rewrite.candidates.context import Format

Array: TypeAlias = NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorError:
    """How far a tensor of the twin is from that in float32.

    Attributes:
      error: the norm of the difference over the norm in float32, of the elements that
        are finite on both sides; infinite if none of those that are finite in float32
        is, or if only the twin's norm is not 0.
      overflowed: share of elements finite in float32, and infinite or NaN in the twin.
      underflowed: share of elements too small for the twin's type: below its smallest
        normal number in float32, and 0 in the twin.
      denormal: share of elements below the smallest normal number of the twin's type.
      small_error: the part of `error` that these and those lost to 0 make.
      largest: the largest absolute value in float32.
      not_finite: share of elements that are not finite in float32 already.
    """

    error: float
    overflowed: float = 0.0
    underflowed: float = 0.0
    denormal: float = 0.0
    small_error: float = 0.0
    largest: float = 0.0
    not_finite: float = 0.0


def tensor_error(exact: Array, found: Array, smallest: float) -> TensorError:
    """Compares one tensor.

    Args:
      exact: in float32.
      found: in the twin, of the same shape, as float32.
      smallest: the smallest normal number of the twin's type.
    """
    if exact.size == 0 or exact.shape != found.shape:
        return TensorError(0.0 if exact.shape == found.shape else math.inf)
    finite = np.isfinite(exact)
    both = finite & np.isfinite(found)
    held, size = np.abs(found), np.abs(exact)
    lost = (found == 0) & (size > 0) & (size < smallest)
    small = (held > 0) & (held < smallest)
    return TensorError(
        error=_relative(exact, found, both, finite, both),
        overflowed=float(np.mean(finite & ~both)),
        underflowed=float(np.mean(lost)),
        denormal=float(np.mean(small)),
        small_error=_relative(exact, found, both, finite, small | lost),
        largest=float(size[finite].max(initial=0.0)),
        not_finite=float(np.mean(~finite)),
    )


def _relative(
    exact: Array, found: Array, both: Array, finite: Array, part: Array
) -> float:
    """The norm of the difference of a part, over the whole norm in float32."""
    if not both.any():
        return math.inf if finite.any() else 0.0
    wanted = np.where(both, exact, 0).astype(np.float64).ravel()
    off = np.where(both, found, 0).astype(np.float64).ravel() - wanted
    off *= part.ravel()
    size, distance = float(np.vdot(wanted, wanted)), float(np.vdot(off, off))
    if size == 0:
        return 0.0 if distance == 0 else math.inf
    return math.sqrt(distance / size)


@dataclasses.dataclass(frozen=True, slots=True)
class RangeFigures:
    """What a 16-bit type would make of a tensor that is float32.

    Attributes:
      largest: the largest absolute value that is finite.
      overflowed: share of elements that are finite and would be infinite.
      underflowed: share of elements that are not 0 and would be 0.
      denormal: share of elements that would be denormal, and lose digits.
      not_finite: share of elements that are not finite in float32 either.
    """

    largest: float
    overflowed: float
    underflowed: float
    denormal: float
    not_finite: float

    @property
    def leaves(self) -> bool:
        """Whether anything leaves the range, or was never in it."""
        return bool(self.overflowed or self.underflowed or self.not_finite)


def range_figures(values: Array, limits: Format) -> RangeFigures:
    """Figures of a tensor in float32, for a 16-bit type.

    A value rounds to infinity from half a unit beyond the largest number on, and to 0
    up to half the smallest denormal.
    """
    if values.size == 0:
        return RangeFigures(0.0, 0.0, 0.0, 0.0, 0.0)
    size = np.abs(values.astype(np.float64))
    finite = np.isfinite(size)
    over = finite & (size >= limits.largest * (1.0 + limits.unit / 2.0))
    least = limits.smallest * limits.unit  # half of smallest * 2 * unit
    under = (size > 0) & (size <= least)
    denormal = (size > least) & (size < limits.smallest)
    return RangeFigures(
        largest=float(size[finite].max(initial=0.0)),
        overflowed=float(np.mean(over)),
        underflowed=float(np.mean(under)),
        denormal=float(np.mean(denormal)),
        not_finite=float(np.mean(~finite)),
    )
