"""`Tensor`: which casts follow from who makes a tensor and who reads it."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.assign.tensor import (
    HIGH,
    LOW,
    CutVariable,
    Passed,
    Reader,
    Tensor,
)
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, Read

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


def forms(
    one: Tensor, low: set[CutVariable], late: dict[Read, str] | None = None
) -> set[str]:
    """The forms of a tensor's casts, which all are where it is made."""
    made = one.to_make(low, late or {})
    assert {place for place, _ in made} <= {PLACE}
    return {form for _, form in made}


MADE, A, B = node("made"), node("a"), node("b")
STORED = CutVariable("stored", PLACE)


@pytest.mark.parametrize(
    ("low", "made"),
    [
        (set(), set()),
        ({MADE}, {"up"}),
        ({A}, {"down"}),
        ({MADE, A}, {"up"}),
        ({MADE, A, B}, set()),
    ],
)
def test_a_cast_is_where_a_reader_has_another_type_than_the_producer(
    low: set[CutVariable], made: set[str]
) -> None:
    assert forms(tensor(MADE, A, B), {LOW, *low}) == made


def test_many_readers_of_one_type_take_one_cast() -> None:
    one = tensor(HIGH, A, B, HIGH)
    assert one.casts({LOW, A, B}) == {(PLACE, True)}
    saved = one.casts_saved({LOW, A, B}, ())
    assert saved == CastsSaved(shared=1)


def test_a_constant_is_folded_and_never_cast_down() -> None:
    one = tensor(HIGH, A, HIGH, free=True)
    assert one.casts({LOW, A}) == set()
    assert forms(one, {LOW, A}) == {"folded"}
    assert forms(one, {LOW}) == set()


def test_what_is_made_low_and_held_so_gets_a_late_cast_per_float32_reader() -> None:
    one, low = tensor(MADE, A, late=(B, HIGH)), {LOW, MADE, A, STORED}
    assert one.waiting(low) == [("late0", 0), ("late1", 0)]
    assert forms(one, low, {("late0", 0): "x", ("late1", 0): "x"}) == {"late"}


def test_a_late_cast_with_nothing_to_wait_for_is_one_made_at_once() -> None:
    one, low = tensor(MADE, late=(HIGH,)), {LOW, MADE, STORED}
    assert forms(one, low, {("late0", 0): ""}) == {"up"}


def test_what_is_held_in_float32_is_cast_when_it_is_made() -> None:
    assert forms(tensor(MADE, A, late=(HIGH,)), {LOW, MADE, A}) == {"up"}


def test_a_tensor_held_in_16_bits_is_cast_down_once_for_all() -> None:
    one, low = tensor(MADE, HIGH, late=(A, HIGH)), {LOW, A, STORED}
    assert forms(one, low, {("late1", 0): "x"}) == {"down", "late"}


def test_a_tensor_that_only_is_held_in_16_bits_is_cast_down_for_that() -> None:
    """Where memory is dearer than two casts: made and read in float32."""
    one, low = tensor(MADE, HIGH, late=(HIGH,)), {LOW, STORED}
    assert one.casts(low) == {(PLACE, True)}
    assert forms(one, low, {("late0", 0): "x"}) == {"down", "late"}


THEN, ELSE = FunctionUse("then", xla=False), FunctionUse("else", xla=False)
ONE, OTHER = (THEN, ("arg", 0)), (ELSE, ("arg", 0))
HALF, REST = (Passed(ONE, 0.5),), (Passed(OTHER, 0.5),)


def test_what_only_one_branch_reads_in_another_type_is_cast_in_it() -> None:
    read = [Reader(A, THEN, branches=HALF), Reader(B, THEN, branches=HALF)]
    one = Tensor(PLACE, MADE, False, False, [*read, Reader(HIGH, ELSE, branches=REST)])
    assert one.to_make({LOW, A, B}, {}) == {(ONE, "down")}
    assert one.to_make({LOW, A, B, MADE}, {}) == {(OTHER, "up")}
    assert one.casts_saved({LOW, A, B}, ()) == CastsSaved(shared=1)


def test_what_the_caller_reads_too_or_all_branches_is_cast_by_the_caller() -> None:
    inside, other = Reader(A, THEN, branches=HALF), Reader(A, ELSE, branches=REST)
    both = Tensor(PLACE, MADE, False, False, [inside, Reader(A, USE)])
    assert both.casts({LOW, A}) == {(PLACE, True)}
    every = Tensor(PLACE, MADE, False, False, [inside, other])
    assert every.casts({LOW, A}) == {(PLACE, True)}


def test_a_cast_for_the_backward_pass_serves_the_branches_too() -> None:
    inside, late = Reader(A, THEN, branches=HALF), Reader(B, USE, ("late", 0), True)
    one = Tensor(PLACE, MADE, False, True, [inside, late])
    assert one.casts({LOW, A, B}) == {(PLACE, True)}


def test_a_branch_in_a_branch_is_cast_in_where_only_it_reads() -> None:
    within = FunctionUse("within", xla=False)
    deep = (*HALF, Passed((within, ("arg", 0)), 0.25))
    one = Tensor(PLACE, MADE, False, False, [Reader(A, within, branches=deep)])
    assert one.casts({LOW, A}) == {((within, ("arg", 0)), True)}
    one.readers.append(Reader(A, THEN, branches=HALF))
    assert one.casts({LOW, A}) == {(ONE, True)}


def test_a_constant_that_a_branch_reads_is_folded_and_not_cast_in_it() -> None:
    read = [Reader(A, THEN, branches=HALF)]
    one = Tensor(PLACE, HIGH, True, False, read)
    assert one.to_make({LOW, A}, {}) == {(PLACE, "folded")}


def test_a_cast_for_a_loop_is_counted_as_hoisted() -> None:
    loop = FunctionUse("body", xla=False)
    one = Tensor(PLACE, HIGH, False, False, [Reader(A, loop), Reader(B, loop)])
    assert one.casts_saved({LOW, A, B}, {loop}) == CastsSaved(shared=1, hoisted=1)
    assert one.casts_saved({LOW, A, B}, ()) == CastsSaved(shared=1)
