"""A call stands in for nodes, and taken apart it leaves the graph that was there."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, run, v1

from amp.graph_rewrite import verify
from amp.graph_rewrite.fusion import outline
from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.steps import uncollected

TYPES = {"x": ir.FLOAT}


def chain() -> None:
    """x, doubled, plus one, and two readers; one waits for a node within."""
    x = v1.placeholder(tf.float32, [4, 2], name="x")
    one = tf.constant(1.0, name="one")
    double = tf.add(x, x, name="double")
    with tf.control_dependencies([x]):
        more = tf.add(double, one, name="more")
    with tf.control_dependencies([double]):
        tf.identity(x, name="later")
    tf.negative(more, name="out")


def outlined(graph: ir.Graph, *members: str) -> outline.Outline:
    gives = ((members[-1], 0),)
    constant = {n for n, node in graph.nodes.items() if node.op == "Const"}
    return outline.outline(graph, members, constant.__contains__, gives, lambda e: 1)


@pytest.fixture
def module() -> ir.Module:
    return module_of(graph_def(chain))


@pytest.fixture
def called(module) -> ir.Module:
    """The same with a call of `double` and `more`."""
    made = outlined(module.main, "double", "more")
    function = outline.function(made, "f")
    graph = outline.with_calls(module.main, {"call": (made, "f")}, {"double", "more"})
    return ir.Module(graph, {"f": function})


def test_values_are_those_of_the_nodes(module, called):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    proto = serde.write_graph(called)
    names = ["out", "later", "double", "more"]
    for old, new in zip(
        run(graph_def(chain), names, {"x": x}), run(proto, names, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(old, new)


def test_readers_and_those_who_wait_are_moved_the_nodes_stay(module, called):
    nodes = called.main.nodes
    assert nodes["out"].inputs == (("call", 0),)
    assert nodes["later"].controls == ("call",)
    assert nodes["call"].controls == ("x",)
    assert nodes["call"].inputs == (("x", 0),)
    assert nodes["more"] is module.main.nodes["more"]
    assert called.main.shape(("call", 0)) == (4, 2)


def test_apart_is_the_graph_that_was_there(module, called):
    problems = verify.same_unfused(module.main, outline.unfuse(called.main))
    assert not list(problems)
    assert outline.unfuse(module.main) is module.main


def test_apart_also_after_writing_and_reading(module, called):
    read = serde.read_graph(serde.write_graph(called))
    again = outline.unfuse(read.main)
    for name, node in module.main.nodes.items():
        assert again.nodes[name].inputs == node.inputs
        assert again.nodes[name].controls == node.controls
    assert again.nodes.keys() == module.main.nodes.keys()


def test_a_call_whose_nodes_were_pruned_stays(called):
    nodes = {n: node for n, node in called.main.nodes.items() if n != "more"}
    pruned = called.main.with_nodes(nodes)
    assert outline.unfuse(pruned) is pruned


def test_a_broken_call_is_found(module, called):
    nodes = dict(called.main.nodes)
    nodes["call"] = nodes["call"].changed(updates={ir.CLUSTER: "double:0"})
    found = list(verify.same_unfused(module.main, outline.unfuse(
        called.main.with_nodes(nodes))))  # fmt: skip
    assert [p.at for p in found] == ["out"]
    assert "'out' differs" in found[0].found


def test_alike_nodes_share_a_key_and_others_do_not():
    def two() -> None:
        for i, shape in enumerate(([2, 3], [2, 3], [3, 2])):
            x = v1.placeholder(tf.float32, shape, name=f"x{i}")
            tf.identity(tf.add(x, 1.0, name=f"add{i}"), name=f"i{i}")
        tf.identity(tf.add(v1.placeholder(tf.float32, [2, 3]), 2.0, name="add3"), "i3")

    graph = module_of(graph_def(two)).main
    first, same, size, value = (
        outlined(graph, f"add{i}", f"i{i}").key for i in range(4)
    )
    assert first == same
    assert len({first, size, value}) == 3
    with_device = dict(graph.nodes)
    for name in ("add1", "i1"):
        node = graph.nodes[name]
        with_device[name] = ir.Node(
            name, node.op, node.inputs, (), "/device:CPU:1", node.attrs
        )
    assert outlined(graph.with_nodes(with_device), "add1", "i1").key != first


def test_attributes_of_others_are_left_behind_ours_are_kept():
    def marked() -> None:
        x = v1.placeholder(tf.float32, [2], name="x")
        y = tf.add(x, 1.0, name="y")
        y.op._set_attr("_class", v1.AttrValue(list={"s": [b"loc:@x"]}))
        y.op._set_attr(ir.UNSCALE, v1.AttrValue(b=True))

    graph = module_of(graph_def(marked)).main
    made = outline.function(outlined(graph, "y"), "f")
    (node,) = [n for n in made.nodes.values() if n.op == "AddV2"]
    assert node.flag(ir.UNSCALE)
    assert not node.has("_class")


@pytest.mark.parametrize("as_read", [True, False])
@pytest.mark.parametrize("attr", ["_class", ir.SOURCE, ir.LATE, ir.AFTER])
def test_what_says_where_a_node_stood_keeps_no_two_from_sharing(attr, as_read):
    """Such as the variable of a gradient: each would have a function of its own."""

    def marked() -> None:
        for name in ("one", "other"):
            y = tf.add(v1.placeholder(tf.float32, [2]), 1.0, name=name)
            y.op._set_attr(ir.UNSCALE, v1.AttrValue(b=True))
            if as_read:
                text = f"loc:@{name}".encode()
                y.op._set_attr(attr, v1.AttrValue(list={"s": [text]}))

    graph = module_of(graph_def(marked)).main
    if not as_read:
        nodes = {
            name: node.changed(updates={attr: name})
            for name, node in graph.nodes.items()
        }
        graph = graph.with_nodes(nodes)
    made = [outlined(graph, name) for name in ("one", "other")]
    assert made[0].key == made[1].key
    assert all(node.flag(ir.UNSCALE) for node in made[0].body if node.op == "AddV2")
    assert all(graph.nodes[name].has(attr) for name in ("one", "other"))


def test_a_graph_that_was_outlined_goes_with_its_last_reader():
    given = module_of(graph_def(chain))
    outlined(given.main, "double", "more")
    main = weakref.ref(given.main)
    with uncollected():
        del given
        assert main() is None
