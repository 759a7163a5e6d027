"""A bridge is a cast between float32 and a 16-bit type, and nothing else."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.graph import bridges, ir


def node(op: str, source: int, target: int) -> ir.Node:
    types = {"SrcT": ir.Type(source), "DstT": ir.Type(target)}
    return ir.Node("n", op, (), (), "", None, types)


@pytest.mark.parametrize("low", [ir.HALF, ir.BFLOAT16])
def test_casts_between_float32_and_this_type_are_bridges(low):
    down, up = node("Cast", ir.FLOAT, low), node("Cast", low, ir.FLOAT)
    assert bridges.is_down(down, low)
    assert not bridges.is_up(down, low)
    assert bridges.is_up(up, low)
    assert not bridges.is_down(up, low)
    other = ir.HALF + ir.BFLOAT16 - low
    for cast in (down, up):
        assert bridges.is_bridge(cast, low)
        assert bridges.is_any(cast)
        assert not bridges.is_bridge(cast, other)


@pytest.mark.parametrize(
    ("op", "source", "target"),
    [
        ("Cast", ir.FLOAT, ir.INT32),
        ("Cast", ir.FLOAT, ir.FLOAT),
        ("Cast", ir.HALF, ir.BFLOAT16),
        ("Bitcast", ir.FLOAT, ir.HALF),
    ],
)
def test_nothing_else_is_a_bridge(op, source, target):
    assert not bridges.is_any(node(op, source, target))


@pytest.mark.parametrize(
    ("type_", "inputs", "handed_on"),
    [(ir.HALF, 1, True), (ir.FLOAT, 1, False), (ir.HALF, 2, False)],
)
def test_the_barrier_of_an_emulated_value_hands_it_on(type_, inputs, handed_on):
    taken = tuple((f"x{index}", 0) for index in range(inputs))
    types = {"T": ir.Types((type_,) * inputs)}
    barrier = ir.Node("n", "XlaOptimizationBarrier", taken, (), "", None, types)
    assert bridges.hands_on(barrier, ir.HALF) == handed_on
    assert bridges.hands_on(node("Cast", ir.FLOAT, ir.HALF), ir.HALF)
