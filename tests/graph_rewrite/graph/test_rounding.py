"""Rounding is that of TensorFlow's Cast, bit for bit, and one value stays one value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from amp.graph_rewrite.graph import ir, rounding

FORMATS = [
    pytest.param(ir.HALF, tf.float16, id="float16"),
    pytest.param(ir.BFLOAT16, tf.bfloat16, id="bfloat16"),
]


def every_kind_of_float() -> np.ndarray:
    """Random bits, every 16-bit value and its neighbours and halfway points, limits."""
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64)
    patterns = [random.astype(np.uint32)]
    halves = np.arange(2**16, dtype=np.uint16)
    for exact in (
        halves.astype(np.uint32) << 16,
        halves.view(np.float16).astype(np.float32).view(np.uint32),
    ):
        for offset in (0, 1, -1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001):
            patterns.append(exact + np.int64(offset))
    bits = np.concatenate([p.astype(np.int64) for p in patterns]) & 0xFFFFFFFF
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("number", "dtype"), FORMATS)
def test_rounding_is_that_of_the_cast_op_bit_for_bit(number: int, dtype: Any) -> None:
    values = every_kind_of_float()
    want = tf.bitcast(tf.cast(values, dtype), tf.uint16).numpy()
    got = rounding.to_bits(values, number).view(np.uint16)
    # TensorFlow's threads take a subnormal float32 operand for 0 of its sign.
    tiny = (np.abs(values) < 2.0**-126) & (values != 0)
    wrong = np.flatnonzero((got != want) & ~tiny)
    assert wrong.size == 0, [(values[i], hex(got[i]), hex(want[i])) for i in wrong[:5]]
    assert set(want[tiny]) <= {0, 0x8000} | set(got[tiny])


@pytest.mark.parametrize(("number", "dtype"), FORMATS)
def test_values_of_bits_are_those_of_the_cast_back(number: int, dtype: Any) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    values = every.view(np.float16) if number == ir.HALF else every
    want = tf.cast(tf.bitcast(tf.constant(every), dtype), tf.float32).numpy()
    np.testing.assert_array_equal(rounding.from_bits(values, number), want)


@pytest.mark.parametrize(("number", "dtype"), FORMATS)
def test_a_repeated_value_is_rounded_once(number: int, dtype: Any) -> None:
    third = np.broadcast_to(np.float32(1 / 3), (4096, 4096))
    got = rounding.rounded(third, number)
    assert got.shape == third.shape
    assert not any(got.strides)
    assert got[0, 0] == tf.cast(tf.cast(1 / 3, dtype), tf.float32).numpy()
    assert rounding.distinct(third).size == 1
    own = np.full((2, 2), 0.5, np.float32)
    assert rounding.distinct(own) is own
