"""Rounds arrays of constants to a 16-bit type exactly as TensorFlow's Cast does.

Works on arrays only; which constants are rounded is decided elsewhere.
"""

from __future__ import annotations

import numpy as np

from amp.graph_rewrite.graph import ir


def to_bits(values: np.ndarray, number: int) -> np.ndarray:
    """Rounds float32 values to nearest even in the type with DataType `number`.

    The bits are those of TensorFlow's Cast on a CPU, NaN included: a float16 NaN keeps
    its sign and leading bits and gets the quiet bit; every bfloat16 NaN is 0x7FC0.

    Returns:
      A float16 array, or the bits of bfloat16 as uint16; other types unchanged.
    """
    if number not in ir.LOW:
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
    """Converts the result of `to_bits` back to float32."""
    if number == ir.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)


def distinct(values: np.ndarray) -> np.ndarray:
    """The values; of a broadcast view of one value, that value alone (same rank)."""
    repeated = values.size > 1 and not any(values.strides)
    return values[tuple(slice(1) for _ in values.shape)] if repeated else values


def rounded(values: np.ndarray, number: int) -> np.ndarray:
    """float32 values rounded to type `number` and back; a broadcast view stays one."""
    once = from_bits(to_bits(distinct(values), number), number)
    return once if once.shape == values.shape else np.broadcast_to(once, values.shape)
