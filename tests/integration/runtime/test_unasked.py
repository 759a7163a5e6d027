"""Calls go by without a question until the first thing is due, and all count them."""

from __future__ import annotations

import itertools

import pytest

from amp.integration.runtime.unasked import Due, unasked


@pytest.mark.parametrize(("lefts", "times"), [((3, None, 5), 3), ((0, 7), 0)])
def test_a_function_is_called_until_the_first_is_due(lefts, times):
    told = []
    again = unasked(b"step", *(Due(left, told.append) for left in lefts))
    assert list(again) == [b"step"] * times
    assert told == [times] * len(lefts)


@pytest.mark.parametrize("lefts", [(), (None, None)])
def test_where_nothing_is_due_calls_never_end_and_nobody_counts(lefts):
    told = []
    again = unasked(b"step", *(Due(left, told.append) for left in lefts))
    assert len(list(itertools.islice(again, 10_000))) == 10_000
    assert told == []
