"""What is said of arrays bit by bit: whether they are the same, and held in 16 bits.

Used by `drills`; what an array is of is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Fewer different values may all be held by 16 bits as it happens: of those that 1.5
# divides, one in three has a significand that is a multiple of 3.
FEW = 16
# TensorFlow may change the order of a sum in the course of a process: from its 78th
# call on, one gradient of eight of a GAN was off by last bits. So where many steps or
# two functions are compared, so large a share of values other than 0 has to differ.
APART = 0.5
MANY = 64  # from so many different values on, a share of them is enough
DIGITS = {"float16": 11, "bfloat16": 8}  # of a significand, in bits
# What is computed back from rounded values is off by several units in the last place.
NEAR = 2.0**-18


def norm(values: Sequence[np.ndarray]) -> float:
    """The Euclidean norm of all values of several arrays."""
    squares = (float(np.sum(np.square(each, dtype=np.float64))) for each in values)
    return math.sqrt(sum(squares))


def times(
    some: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> tuple[float, float]:
    """By which factor all of some is nearest to others; what is left, as a share."""
    pairs = [(a.astype(np.float64), b) for a, b in zip(some, others, strict=True)]
    size = norm(others)
    if not size:
        return 1.0, 0.0
    factor = sum(float(np.sum(a * b)) for a, b in pairs) / size**2
    return factor, norm([a - factor * b for a, b in pairs]) / size


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same values; NaNs are the same."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def apart(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether most of the values that are not 0 in both differ."""
    differ = sum(int(np.sum(a != b)) for a, b in zip(some, others, strict=True))
    known = sum(
        int(np.sum((a != 0) | (b != 0))) for a, b in zip(some, others, strict=True)
    )
    return differ > APART * known


def in_16_bits(values: np.ndarray, few: int = FEW, share: float = 1.0) -> bool:
    """Whether float16 or bfloat16 holds all of many different float32 values.

    Args:
      values: of any type.
      few: with fewer different ones the answer is no.
      share: or so many of `MANY` and more.
    """
    if values.dtype != np.float32:
        return False
    some = np.unique(values[(values != 0) & np.isfinite(values)])
    if some.size < few:
        return False
    with np.errstate(over="ignore"):
        half = some.astype(np.float16).astype(np.float32)
    least = share if some.size >= MANY else 1.0
    held = (half == some, some.view(np.uint32) & 0xFFFF == 0)
    return any(float(np.mean(each)) >= least for each in held)


def near_16_bits(
    values: np.ndarray,
    near: float = NEAR,
    dtypes: Sequence[str] = tuple(DIGITS),
    few: int = FEW,
) -> bool:
    """Whether all of many different values are near to what a 16-bit type holds.

    As what is computed back from float32 values is.

    Args:
      values: floating-point ones.
      near: by how much of itself a value may be off.
      dtypes: any of these.
      few: as of `in_16_bits`.
    """
    some = np.unique(values[(values != 0) & np.isfinite(values)]).astype(np.float64)
    if some.size < few:
        return False
    significands = np.abs(np.frexp(some)[0])
    for dtype in dtypes:
        steps = significands * 2.0 ** DIGITS[dtype]
        if np.all(np.abs(steps - np.round(steps)) <= near * steps):
            return True
    return False
