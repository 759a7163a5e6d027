"""`link`: twins stand beside their originals; calls of what changed point there."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from rewriting import graph_def, module_of, rewritten, spec, v1

from amp.graph_rewrite.apply import link
from amp.graph_rewrite.graph import calls, ir


def linked(build: Callable[[tf.Tensor], object]) -> tuple[ir.Module, ir.Module]:
    """A module and what `link` makes of it if all with a product have changed."""
    module = module_of(
        graph_def(lambda: build(v1.placeholder(tf.float32, [4, 4], name="x")))
    )
    graphs = {}
    for use in calls.uses_with_weights(module):
        graph = calls.graph_of(module, use)
        products = any(node.op == "MatMul" for node in graph.nodes.values())
        graphs[use] = graph.with_nodes({**graph.nodes}) if products else graph
    return module, link.link(module, graphs, "__t").module


def nested() -> tuple[ir.Module, ir.Module]:
    inner = tf.function(lambda x: tf.matmul(x, x))
    plain = tf.function(lambda x: tf.exp(x))
    return linked(tf.function(lambda x: plain(inner(x))))


def test_a_function_compiled_here_and_not_there_gets_two_twins() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x))
    compiled = tf.function(lambda x: inner(x), jit_compile=True)
    _, after = linked(lambda x: inner(x) + compiled(x))
    assert len([name for name in after.functions if name.endswith("__t_xla")]) == 1


def called(graph: ir.Graph) -> list[str]:
    return [name for n in graph.nodes.values() for name in n.functions("f")]


def test_what_changed_or_calls_what_changed_is_named_anew() -> None:
    before, after = nested()
    new = set(after.functions) - set(before.functions)
    assert len(new) == 2  # the product's function and its caller; not the exponential's
    assert set(before.functions) < set(after.functions)
    assert all(name.removesuffix("__t") in before.functions for name in new)


def test_calls_point_at_twins_and_originals_call_originals() -> None:
    before, after = nested()
    (outer,) = called(before.main)
    (twin,) = called(after.main)
    assert twin == f"{outer}__t"
    assert len([n for n in called(after.functions[twin]) if n.endswith("__t")]) == 1
    assert not [n for n in called(after.functions[outer]) if n.endswith("__t")]


def test_untouched_functions_are_the_very_same() -> None:
    before, after = nested()
    for name, graph in before.functions.items():
        assert after.functions[name] is graph


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x))

    def build() -> None:
        inner(v1.placeholder(tf.float32, [4, 4], name="x"))

    proto = graph_def(build)
    (taken,) = [f for f in proto.library.function if "inference" in f.signature.name]
    other = proto.library.function.add()
    other.CopyFrom(taken)
    other.signature.name += "__amp"
    made = rewritten(proto).graph
    names = [f.signature.name for f in made.library.function]
    assert len(names) == len(set(names)) == len(proto.library.function) + 1
    (call,) = [n for n in made.node if n.attr["f"].func.name]
    by_name = {f.signature.name: f for f in made.library.function}
    target = by_name[call.attr["f"].func.name]
    assert 14 in {n.attr["T"].type for n in target.node_def if n.op == "MatMul"}


def test_a_function_called_as_an_op_is_renamed_too() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x)).get_concrete_function(spec(4, 4))

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4, 4], name="x")
        inner.add_to_graph(graph)
        graph.create_op(inner.name, [x], [tf.float32], name="direct")
    made = rewritten(graph.as_graph_def()).graph
    (direct,) = [node for node in made.node if node.name == "direct"]
    assert direct.op.endswith("__amp")
