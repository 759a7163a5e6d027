"""A twin grows by imports, whole or not at all, and every name is taken once."""

from __future__ import annotations

import pytest
import tensorflow as tf
from session_graphs import v1

from amp.integration.sessions import twin_graph
from amp.integration.sessions.twin_graph import TwinGraph


def added(twin, text, edges=None, controls=None):
    proto = v1.GraphDef()
    for line in text.split(";"):
        name, op, *inputs = line.split()
        node = proto.node.add(name=name, op=op, input=inputs)
        if op != "NoOp":
            node.attr["T"].type = 1
    return twin.add(proto, edges or {}, controls or {})


@pytest.fixture
def twin():
    graph = tf.Graph()
    made = TwinGraph(graph)
    with made.graph.as_default():
        made.given = v1.placeholder(tf.float32, [2], name="given")
    made.keep = graph
    return made


def test_a_taken_name_is_changed_with_all_who_name_it(twin):
    edges = {("x", 0): twin.given}
    first = added(twin, "a Identity x;b Neg a;c NoOp ^b", edges)
    again = added(twin, "a Identity x;b Neg a;c NoOp ^b", edges)
    assert {given: made.name for given, made in first.items()} == {
        given: given for given in "abc"
    }
    assert [made.name for made in again.values()] == ["a/amp_2", "b/amp_2", "c/amp_2"]
    assert again["b"].inputs[0].op is again["a"]
    assert again["c"].control_inputs == [again["b"]]


def test_a_scope_is_taken_with_what_is_in_it(twin):
    edges = {("x", 0): twin.given}
    added(twin, "a/b Identity x", edges)
    assert added(twin, "a Identity x", edges)["a"].name == "a/amp_2"


def test_controls_may_be_of_what_has_no_output(twin):
    first = added(twin, "wait NoOp")
    given = {"wait": first["wait"]}
    made = added(twin, "a Identity x ^wait", {("x", 0): twin.given}, given)
    assert made["a"].control_inputs == [first["wait"]]


def test_what_cannot_be_imported_leaves_nothing(twin):
    with pytest.raises(tf.errors.InvalidArgumentError):
        added(twin, "a Identity x;b Neg nowhere", {("x", 0): twin.given})
    assert [op.name for op in twin.graph.get_operations()] == ["given"]
    assert added(twin, "a Identity x", {("x", 0): twin.given})["a"].name == "a"


def test_what_was_imported_as_ctrl_c_came_is_imported_under_other_names(
    twin, monkeypatch
):
    edges, honest = {("x", 0): twin.given}, twin_graph.import_nodes

    def interrupted(*args):
        honest(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(twin_graph, "import_nodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        added(twin, "s/a Identity x", edges)
    monkeypatch.setattr(twin_graph, "import_nodes", honest)
    assert added(twin, "s/a Identity x", edges)["s/a"].name == "s/a/amp_2"
    assert added(twin, "s Identity x", edges)["s"].name == "s/amp_2"
