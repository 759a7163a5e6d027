"""`AssumedSizes`: what nothing tells is as long as the first argument, or as usual."""

from __future__ import annotations

from amp.graph_rewrite.graph.shapes import UNKNOWN_DIMENSION
from amp.graph_rewrite.normalize.assumed_sizes import AssumedSizes


def test_an_unknown_dimension_is_that_of_the_first_argument() -> None:
    assume = AssumedSizes([(64, 0), (7, 5, 3)])
    assert assume.shape((-1, 4), []) == (64, 4)
    assert assume.shape((-1, -1, -1), []) == (64, 5, 3)  # an axis of 0 tells nothing
    assert assume.shape((2, 2, 2, -1), []) == (2, 2, 2, UNKNOWN_DIMENSION)


def test_a_tensor_of_unknown_rank_is_as_large_as_the_largest_input() -> None:
    assume = AssumedSizes()
    assert assume.shape(None, [(2,), (3, 4), None, (-1, 9)]) == (3, 4)
    assert assume.shape(None, [None]) is None


def test_a_reshaped_tensor_keeps_its_elements() -> None:
    assume = AssumedSizes([(4, 5)])
    assert assume.reshaped((-1, 8), (4, 5, 8)) == (20, 8)
    assert assume.reshaped((-1, -1, 2, 4), (20, 8)) == (4, 5, 2, 4)
    assert assume.reshaped((-1, -1, 2), (3, 6)) == (1, 9, 2)  # 9 rows are not 4 by any
    assert assume.reshaped(None, (4, 5)) == (20,)
    assert assume.reshaped((-1, 0), (4, 0)) == (0, 0)
