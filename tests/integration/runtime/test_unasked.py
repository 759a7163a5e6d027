"""Calls go by without a question until the first thing is due, and all count them."""

from __future__ import annotations

import functools
import itertools

import pytest

from amp.integration.runtime.unasked import Due, Unasked


class Counted:
    """Something that comes after so many calls."""

    def __init__(self, calls):
        self.calls, self.after = 0, calls

    def due(self):
        left = None if self.after is None else self.after - self.calls
        return Due(left, self.passed)

    def passed(self, calls):
        self.calls += calls


@pytest.mark.parametrize(("lefts", "times"), [((3, None, 5), 3), ((0, 7), 0)])
def test_a_form_is_called_until_the_first_is_due(lefts, times):
    unasked, counted = Unasked(), [Counted(left) for left in lefts]
    unasked.put("step", b"twin", *(each.due for each in counted))
    assert list(unasked.given["step"]) == [b"twin"] * times
    assert [each.calls for each in counted] == [times] * len(lefts)


@pytest.mark.parametrize("lefts", [(), (None, None)])
def test_where_nothing_is_due_calls_never_end_and_nobody_counts(lefts):
    unasked, counted = Unasked(), [Counted(left) for left in lefts]
    unasked.put("step", b"twin", *(each.due for each in counted))
    assert len(list(itertools.islice(unasked.given["step"], 10_000))) == 10_000
    unasked.end("step")
    assert [each.calls for each in counted] == [0] * len(lefts)
    assert "step" not in unasked.given


@pytest.mark.parametrize(
    "end", [Unasked.end_all, lambda unasked: unasked.end("step")], ids=["all", "one"]
)
def test_calls_that_were_not_made_do_not_count(end):
    """Whatever ends it, a check comes after as many calls as without that."""
    unasked, check = Unasked(), Counted(500)
    made = 0
    while check.calls < check.after:
        unasked.put("step", b"twin", check.due, functools.partial(Due, 90, int))
        made += len(list(itertools.islice(unasked.given["step"], 7)))
        end(unasked)
    assert made == check.calls == 500


def test_one_form_in_the_place_of_another_counts_the_calls_of_both_once():
    unasked, check = Unasked(), Counted(500)
    unasked.put("step", b"one", check.due)
    assert next(unasked.given["step"]) == b"one"
    unasked.put("step", b"two", check.due)
    assert check.calls == 500
    assert list(unasked.given["step"]) == [b"two"] * 499


def test_what_is_forgotten_is_counted_by_nobody():
    unasked, check = Unasked(), Counted(500)
    unasked.put("step", b"twin", check.due)
    unasked.forget("step")
    unasked.end_all()
    assert check.calls == 500
