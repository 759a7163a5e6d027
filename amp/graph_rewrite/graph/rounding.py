"""Rounding constants to 16 bits, as TensorFlow's Cast does it.

Arrays only; which constants are rounded is decided elsewhere.
"""

from __future__ import annotations

import numpy as np

from amp.graph_rewrite.graph import ir


def to_bits(values: np.ndarray, number: int) -> np.ndarray:
    """float32 values rounded to nearest even in type `number`, as that type's bytes.

    Bit for bit what TensorFlow's Cast gives on a CPU, NaN included: float16 keeps its
    sign and leading bits and sets the quiet bit, bfloat16 has one NaN.
    """
    if number not in (ir.HALF, ir.BFLOAT16):
        return values
    bits = np.asarray(values, np.float32).view(np.uint32)
    nan = np.isnan(values)
    if number == ir.HALF:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = np.asarray(values, np.float32).astype(np.float16)
        quiet = 0x7E00 | ((bits >> 16) & 0x8000) | ((bits >> 13) & 0x1FF)
        made = np.where(nan, quiet, rounded.view(np.uint16)).astype(np.uint16)
        return made.view(np.float16)
    wide = bits.astype(np.uint64)
    kept = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(nan, np.uint16(0x7FC0), kept)


def from_bits(bits: np.ndarray, number: int) -> np.ndarray:
    """The float32 values of `to_bits`' result."""
    if number == ir.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)


def distinct(values: np.ndarray) -> np.ndarray:
    """The values, or the single one that a view repeats, with as many dimensions."""
    repeated = values.size > 1 and not any(values.strides)
    return values[tuple(slice(1) for _ in values.shape)] if repeated else values


def rounded(values: np.ndarray, number: int) -> np.ndarray:
    """float32 values as type `number` holds them; a repeated value stays a view."""
    once = from_bits(to_bits(distinct(values), number), number)
    return once if once.shape == values.shape else np.broadcast_to(once, values.shape)
