"""`Turns`: everybody who meets has as many turns, in no order that a job can follow."""

from __future__ import annotations

import collections

import hypothesis
import hypothesis.strategies as st
import pytest

from amp.integration.racing.race_log import FLOAT32
from amp.integration.racing.turns import AT_ONCE, Turn, Turns

NAMES = ("cut", FLOAT32, "all", "products")


def names_of(turns: Turns, count: int) -> list[str]:
    return [turns.next().name for _ in range(count)]


@pytest.mark.parametrize("ahead", [2, 6])
def test_the_first_round_has_the_first_two_in_their_order(ahead: int) -> None:
    turns = Turns(NAMES, ahead)
    drawn = [turns.next() for _ in range(ahead + 2)]
    assert drawn == [Turn("cut", 0)] * ahead + [Turn(FLOAT32, 0)] * 2
    assert turns.round_over
    assert turns.next().round == 1
    assert not turns.round_over


def test_each_further_round_has_one_turn_of_each_in_any_order() -> None:
    turns = Turns(NAMES)
    names_of(turns, 4)
    orders = {tuple(names_of(turns, 2)) for _ in range(20)}
    assert orders == {("cut", FLOAT32), (FLOAT32, "cut")}


def test_the_next_meets_who_is_left_in_a_round_of_its_own() -> None:
    turns = Turns(NAMES)
    names_of(turns, 4)
    assert turns.take_out({FLOAT32: "slower"})
    assert turns.left == ["cut", "all"]
    drawn = [turns.next() for _ in range(3)]
    assert drawn == [Turn(name, 1) for name in ("all", "all", "cut")]
    assert turns.out == {FLOAT32: "slower"}


def test_a_turn_that_did_not_count_comes_again_unless_its_entrant_is_out() -> None:
    turns = Turns(NAMES)
    turn = turns.next()
    turns.again(turn)
    assert turns.next() == turn
    turns.take_out({"cut": "slower"})
    turns.again(turn)
    assert "cut" not in names_of(turns, 9)


def test_who_enters_later_comes_as_the_next() -> None:
    turns = Turns(NAMES)
    assert not turns.add("measured")
    turns.take_out({"cut": "slower"})
    assert turns.left == [FLOAT32, "measured"]
    assert turns.entrants == (*NAMES, "measured")


@hypothesis.given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.data())
def test_both_who_meet_have_one_turn_in_each_round(
    lengths: list[int], data: st.DataObject
) -> None:
    """And a newcomer one more in its first, which makes it ready."""
    turns, latest = Turns(NAMES), -1
    for length in lengths:
        assert len(turns.left) == AT_ONCE
        meeting = [turns.next() for _ in range(length)]
        assert {turn.name for turn in meeting} <= set(turns.left)
        rounds = collections.defaultdict(collections.Counter)
        for turn in meeting:
            rounds[turn.round][turn.name] += 1
        new = [number for number in rounds if number > latest]  # in order
        whole = [rounds[number] for number in new[:-1]]
        newcomer, one = {turns.left[-1]: 2}, dict.fromkeys(turns.left, 1)
        first = dict.fromkeys(turns.left, 2) if latest < 0 else one | newcomer
        assert whole == [first, *[one] * (len(whole) - 1)][: len(whole)]
        latest = max(latest + 1, *rounds)
        turns.take_out({data.draw(st.sampled_from(turns.left)): "slower"})
    assert set(turns.out).union(turns.left) == set(NAMES)
