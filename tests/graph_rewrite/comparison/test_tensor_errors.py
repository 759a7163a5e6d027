"""Figures of one tensor: what is an error, an overflow, an underflow, a denormal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.comparison.tensor_errors import range_figures, tensor_error

HALF = FORMATS["float16"]


def compared(exact, found):
    arrays = (np.array(values, np.float32) for values in (exact, found))
    return tensor_error(*arrays, HALF.smallest)


def test_the_error_is_relative_to_the_norm_of_what_is_finite_on_both_sides():
    assert compared([3.0, 4.0, 7.0], [3.0, 3.0, math.inf]).error == pytest.approx(0.2)


def test_overflow_is_what_was_finite_and_is_not():
    figures = compared([1e6, math.inf, math.nan, 1.0], [math.inf, math.inf, 0.0, 1.0])
    assert figures.overflowed == 0.25


def test_what_a_choice_turned_to_0_is_no_underflow():
    figures = compared([1e-8, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0])
    assert figures.underflowed == 0.25


def test_a_denormal_is_below_the_smallest_normal_number_of_the_type():
    figures = compared([1e-5, 1.0], [1.001e-5, 1.0])
    assert figures.denormal == 0.5
    assert 0 < figures.small_error == figures.error


def test_the_error_of_small_values_is_the_part_that_they_make():
    figures = compared([1e-5, 1.0], [0.0, 2.0])
    assert figures.error == pytest.approx(1.0)
    assert figures.small_error == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("exact", "found", "error"),
    [([], [], 0.0), ([0.0], [0.0], 0.0), ([0.0], [1.0], math.inf)],
)
def test_there_is_an_error_also_where_nothing_is_to_divide_by(exact, found, error):
    assert compared(exact, found).error == error


def test_the_range_is_that_of_the_cast():
    values = np.array([65519.0, 65520.0, 2.0**-25, 2.0**-24, 2.0**-15, 1.0], np.float32)
    figures = range_figures(values, HALF)
    with np.errstate(over="ignore"):
        cast = values.astype(np.float16)
    assert figures.overflowed == np.mean(np.isinf(cast)) == 1 / 6
    assert figures.underflowed == np.mean(cast == 0) == 1 / 6
    assert figures.denormal == 2 / 6
    assert figures.largest == 65520.0
    assert figures.leaves


def test_what_is_not_finite_in_float32_leaves_the_range_too():
    figures = range_figures(np.array([math.nan, 1.0], np.float32), HALF)
    assert figures.not_finite == 0.5
    assert figures.leaves
    assert figures.largest == 1.0
