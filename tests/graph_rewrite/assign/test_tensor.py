"""`Tensor`: which casts follow from who makes a tensor and who reads it."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.assign.tensor import HIGH, LOW, CutVariable, Reader, Tensor
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved

USE = FunctionUse("step", xla=False)
PLACE = (USE, ("made", 0))


def node(name: str) -> CutVariable:
    return CutVariable("node", (USE, name))


def tensor(
    producer: CutVariable,
    *readers: CutVariable,
    free: bool = False,
    late: tuple[CutVariable, ...] = (),
) -> Tensor:
    read = [Reader(one, USE, (f"early{i}", 0)) for i, one in enumerate(readers)]
    read += [Reader(one, USE, (f"late{i}", 0), True) for i, one in enumerate(late)]
    return Tensor(PLACE, producer, free, bool(late), read)


MADE, A, B = node("made"), node("a"), node("b")
STORED = CutVariable("stored", PLACE)


@pytest.mark.parametrize(
    ("low", "forms"),
    [
        (set(), set()),
        ({MADE}, {"up"}),
        ({A}, {"down"}),
        ({MADE, A}, {"up"}),
        ({MADE, A, B}, set()),
    ],
)
def test_a_cast_is_where_a_reader_has_another_type_than_the_producer(
    low: set[CutVariable], forms: set[str]
) -> None:
    assert tensor(MADE, A, B).forms({LOW, *low}, {}) == forms


def test_many_readers_of_one_type_take_one_cast() -> None:
    one = tensor(HIGH, A, B, HIGH)
    assert one.casts({LOW, A, B}) == {True}
    saved = one.casts_saved({LOW, A, B}, ())
    assert saved == CastsSaved(shared=1)


def test_a_constant_is_folded_and_never_cast_down() -> None:
    one = tensor(HIGH, A, HIGH, free=True)
    assert one.casts({LOW, A}) == set()
    assert one.forms({LOW, A}, {}) == {"folded"}
    assert one.forms({LOW}, {}) == set()


def test_what_is_made_low_and_held_so_gets_a_late_cast_per_float32_reader() -> None:
    one, low = tensor(MADE, A, late=(B, HIGH)), {LOW, MADE, A, STORED}
    assert one.waiting(low) == [("late0", 0), ("late1", 0)]
    assert one.forms(low, {("late0", 0): "x", ("late1", 0): "x"}) == {"late"}


def test_a_late_cast_with_nothing_to_wait_for_is_one_made_at_once() -> None:
    one, low = tensor(MADE, late=(HIGH,)), {LOW, MADE, STORED}
    assert one.forms(low, {("late0", 0): ""}) == {"up"}


def test_what_is_held_in_float32_is_cast_when_it_is_made() -> None:
    assert tensor(MADE, A, late=(HIGH,)).forms({LOW, MADE, A}, {}) == {"up"}


def test_a_tensor_held_in_16_bits_is_cast_down_once_for_all() -> None:
    one, low = tensor(MADE, HIGH, late=(A, HIGH)), {LOW, A, STORED}
    assert one.forms(low, {("late1", 0): "x"}) == {"down", "late"}


def test_a_cast_for_a_loop_is_counted_as_hoisted() -> None:
    loop = FunctionUse("body", xla=False)
    one = Tensor(PLACE, HIGH, False, False, [Reader(A, loop), Reader(B, loop)])
    assert one.casts_saved({LOW, A, B}, {loop}) == CastsSaved(shared=1, hoisted=1)
    assert one.casts_saved({LOW, A, B}, ()) == CastsSaved(shared=1)
