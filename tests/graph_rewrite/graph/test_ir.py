"""`ir`: nodes overlay what they were read with; edges, readers and order are facts."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, module_of, v1

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.steps import uncollected


def node(name: str, *inputs: str, op: str = "Identity", controls: str = "") -> ir.Node:
    edges = tuple((source, 0) for source in inputs)
    return ir.Node(name, op, edges, tuple(controls.split()), "", None)


def graph(*nodes: ir.Node) -> ir.Graph:
    return ir.Graph("", {n.name: n for n in nodes})


def test_updates_overlay_what_was_read_and_leave_the_original() -> None:
    main = module_of(graph_def(matmul_chain)).main
    product = main.nodes["product"]
    turned = product.changed(updates={"T": ir.Type(ir.BFLOAT16), "transpose_a": True})
    assert product.types("T") == (ir.FLOAT,)
    assert not product.flag("transpose_a")
    assert turned.types("T") == (ir.BFLOAT16,)
    assert turned.flag("transpose_a")
    assert turned.inputs == product.inputs
    assert product.pristine
    assert not turned.pristine


def test_every_kind_of_value_reads_back_from_an_update() -> None:
    values = np.array([1.5, 2.5], np.float32)
    made = node("made").changed(
        updates={
            "T": ir.Types((1, 3)),
            "f": ir.Functions(("g", "h")),
            "value": ir.Tensor(values, ir.HALF),
            "N": 2,
            "equation": "ij,jk->ik",
            "flag": True,
        }
    )
    assert made.types("T") == (1, 3)
    assert made.functions("f") == ("g", "h")
    assert made.tensor() is values
    assert made.integer("N", 0) == 2
    assert made.text("equation") == "ij,jk->ik"
    assert made.flag("flag")
    assert made.has("N")


def test_absent_attributes_have_their_defaults() -> None:
    for bare in (node("a"), module_of(graph_def(matmul_chain)).main.nodes["tanh"]):
        assert bare.types("U") == ()
        assert bare.functions("f") == ()
        assert bare.tensor() is None
        assert bare.integer("N", 7) == 7
        assert bare.text("equation") == ""
        assert not bare.flag("flag")
        assert not bare.has("flag")


@pytest.mark.parametrize(
    ("attr", "is_of_work"),
    [("T", True), ("_class", False), (ir.UNSCALE, True), (ir.SOURCE, False)],
)
def test_some_attributes_say_where_a_node_stands(attr: str, is_of_work: bool) -> None:
    assert ir.is_of_work(attr) == is_of_work


def test_consumers_are_every_reader_of_every_edge() -> None:
    split = graph(node("a"), node("b", "a", "a"), node("c", "a", controls="b"))
    assert split.readers == {("a", 0): [("b", 0), ("b", 1), ("c", 0)]}


def test_inputs_and_controls_come_first_in_the_order() -> None:
    order = graph(
        node("c", "b"), node("a"), node("b", controls="a"), node("d", "argument")
    ).order
    assert order.index("a") < order.index("b") < order.index("c")
    assert set(order) == {"a", "b", "c", "d"}


def test_what_nodes_need_is_what_they_read_or_wait_for_at_any_distance() -> None:
    end = node("c", "b", controls="w")
    given = graph(node("a"), node("w"), node("b", "a", "argument"), end, node("d", "c"))
    assert given.needed_for(["c"]) == {"a", "b", "c", "w"}
    assert given.needed_for(["argument"]) == set()


def test_what_edges_are_computed_from_is_what_they_read_and_no_more_than_asked():
    end = node("c", "b", controls="w")
    given = graph(node("a"), node("w"), node("b", "a", "argument"), end, node("d", "c"))
    assert given.computed_from([("c", 0)]) == {"a", "argument", "b", "c"}
    assert given.computed_from([("c", 0)], lambda n: n.name != "b") == {"b", "c"}


def test_a_cycle_is_told_apart_from_a_v1_loop() -> None:
    assert graph(node("a", "b"), node("b", "a"), node("c")).order == ["c"]

    def loop() -> None:
        v1.disable_control_flow_v2()
        try:
            tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
        finally:
            v1.enable_control_flow_v2()

    main = module_of(graph_def(loop)).main
    assert "NextIteration" in {n.op for n in main.nodes.values()}
    assert len(main.order) == len(main.nodes)


def test_a_made_node_has_the_shape_of_its_operand() -> None:
    main = module_of(graph_def(matmul_chain)).main
    cast = node("cast", "tanh", op="Cast")
    again = node("again", "cast", op="Cast")
    constant = node("constant", op="Const").changed(
        updates={"value": ir.Tensor(np.zeros((2, 3), np.float32), ir.HALF)}
    )
    made = main.with_nodes({**main.nodes, "cast": cast, "again": again, "c": constant})
    assert made.shape(("again", 0)) == (8, 16)
    assert made.shape(("c", 0)) == (2, 3)
    assert made.shape(("out", 0)) == (16, 8)


def test_what_a_graph_with_added_nodes_holds_goes_with_it() -> None:
    def known(edge: ir.Edge) -> ir.Shape:
        return (2, 3)

    given = dataclasses.replace(graph(node("x")), shape=known)
    casts = {"down": node("down", "x"), "up": node("up", "down")}
    made = given.with_nodes({**given.nodes, **casts})
    assert made.shape(("up", 0)) == (2, 3)
    source = weakref.ref(known)
    with uncollected():
        del known, given, made
        assert source() is None
