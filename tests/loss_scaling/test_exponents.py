"""Exponents of a gradient are counted exactly, and tell what a 16-bit type loses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp.loss_scaling import exponents


def counts(*values):
    return exponents.counted(tf.constant(values, tf.float32)).numpy()


@pytest.mark.parametrize(
    ("value", "place"),
    [(0.0, 0), (1.0, 127), (-1.5, 127), (2.0**-24, 103), (np.inf, 255), (np.nan, 255)],
)
def test_a_value_counts_at_its_exponent(value, place):
    found = counts(value)
    assert found[place] == found.sum() == 1.0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_every_floating_type_is_counted(dtype):
    found = exponents.counted(tf.constant([[1.0], [4.0]], dtype)).numpy()
    assert found[127] == found[129] == 1.0


def test_of_a_large_gradient_a_part_of_all_columns_is_counted():
    columns = tf.constant(2.0 ** np.arange(8), tf.float32)
    found = exponents.counted(tf.tile(columns[None], [2**16, 1])).numpy()
    assert exponents.SAMPLED / 2 <= found.sum() <= exponents.SAMPLED
    # The distance is odd: no column of eight is met more than once oftener.
    assert np.ptp(found[127:135]) <= 1


def test_what_float16_rounds_to_0_and_what_loses_digits():
    values = [0.0, 2.0**-26, 2.0**-25 * 1.5, 2.0**-15, 2.0**-14, 1.0, np.inf]
    found = exponents.underflow(counts(*values), "float16")
    assert np.float16(values[1]) == 0 < np.float16(values[2])
    # Of six finite ones two are 0 and two are under 2**-14, the smallest normal number.
    assert found.zero == found.denormal == 2 / 6
    assert dict(found.exponents) == {-26: 1, -25: 1, -15: 1, -14: 1, 0: 1}


def test_bfloat16_has_the_range_of_float32():
    found = exponents.underflow(counts(1e-30, 1.0), "bfloat16")
    assert found.zero == found.denormal == 0.0


def test_xla_counts_alike():
    compiled = tf.function(exponents.counted, jit_compile=True)
    values = tf.constant([0.0, 1e-6, 3.0, np.inf])
    np.testing.assert_array_equal(compiled(values), exponents.counted(values))
