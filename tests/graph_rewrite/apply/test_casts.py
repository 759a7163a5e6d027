"""`casts`: one node a tensor and form, under a name of its own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, v1

from amp.graph_rewrite.apply.casts import Casts
from amp.graph_rewrite.graph import ir


def build() -> None:
    x = v1.placeholder(tf.float32, [4], name="x")
    with tf.device("/CPU:0"):
        tf.split(x, 2, name="split")
    with tf.control_dependencies([x]):
        tf.constant([1 / 3], tf.float32, name="third")
    tf.cast(v1.placeholder(tf.bfloat16, [4], name="low"), tf.float32, name="up")


def made(
    barrier: bool = False, fed: frozenset[str] = frozenset()
) -> tuple[dict[str, ir.Node], Casts]:
    nodes = dict(module_of(graph_def(build)).main.nodes)
    return nodes, Casts(nodes, ir.BFLOAT16, barrier=barrier, fed=fed)


def test_a_form_is_made_once() -> None:
    nodes, casts = made()
    count = len(nodes)
    assert casts.down(("x", 0)) == casts.down(("x", 0)) == ("x/amp_to_bfloat16", 0)
    assert len(nodes) == count + 1


def test_what_is_fed_is_neither_a_constant_nor_a_cast() -> None:
    """The caller's tensor takes its place, whatever the node computes."""
    nodes, casts = made(fed=frozenset({"third", "up"}))
    for edge in (("third", 0), ("up", 0)):
        low, _ = casts.down(edge)
        assert nodes[low].op == "Cast"
        assert nodes[low].inputs == (edge,)
    name, _ = casts.rounded(("third", 0))
    assert nodes[name].op == "Cast"


def test_outputs_of_one_node_have_a_cast_each_on_its_device() -> None:
    nodes, casts = made()
    one, two = casts.down(("split", 0)), casts.down(("split", 1))
    assert one != two
    assert nodes[two[0]].inputs == (("split", 1),)
    assert nodes[two[0]].device == nodes["split"].device != ""


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    nodes, casts = made()
    nodes["x/amp_to_bfloat16"] = nodes["x"]
    assert casts.down(("x", 0)) == ("x/amp_to_bfloat16_2", 0)


def test_a_constant_is_rounded_and_keeps_its_controls() -> None:
    nodes, casts = made()
    (name, _) = casts.down(("third", 0))
    assert nodes[name].op == "Const"
    assert nodes[name].types("dtype") == (ir.BFLOAT16,)
    assert nodes[name].controls == ("x",)  # a loop's frame hangs on them
    value = nodes[name].tensor()
    assert value == tf.cast(tf.cast(1 / 3, tf.bfloat16), tf.float32)
    (same, _) = casts.rounded(("third", 0))
    assert nodes[same].types("dtype") == (ir.FLOAT,)
    np.testing.assert_array_equal(nodes[same].tensor(), value)


def test_a_cast_up_is_undone_for_nothing() -> None:
    nodes, casts = made()
    count = len(nodes)
    assert casts.down(("up", 0)) == ("low", 0)
    assert len(nodes) == count


def test_rounding_is_a_cast_down_and_up_with_a_barrier_for_xla() -> None:
    nodes, casts = made()
    up = nodes[casts.rounded(("x", 0))[0]]
    down = nodes[up.inputs[0][0]]
    assert (up.types("SrcT"), up.types("DstT")) == ((ir.BFLOAT16,), (ir.FLOAT,))
    assert down.inputs == (("x", 0),)
    nodes, casts = made(barrier=True)
    up = nodes[casts.rounded(("x", 0))[0]]
    wall = nodes[up.inputs[0][0]]
    assert wall.op == "XlaOptimizationBarrier"
    assert nodes[wall.inputs[0][0]].op == "Cast"


@pytest.mark.parametrize(
    ("read", "walls"), [("third", 0), ("shape", 0), ("x", 1), ("drawn", 1)]
)
def test_what_may_be_computed_before_xla_compiles_has_no_barrier(
    read: str, walls: int
) -> None:
    nodes, casts = made(barrier=True)

    def add(name: str, op: str, *inputs: str) -> None:
        edges = tuple((each, 0) for each in inputs)
        nodes[name] = ir.Node(name, op, edges, (), "", None, {})

    add("shape", "Shape", "x")
    add("drawn", "RandomUniform", "shape")
    add("sum", "AddV2", read, "third")
    add("negated", "Neg", "sum")
    casts.rounded(("negated", 0))
    assert [n.op for n in nodes.values()].count("XlaOptimizationBarrier") == walls
