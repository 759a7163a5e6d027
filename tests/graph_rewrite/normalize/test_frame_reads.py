"""Reads that only wait for a trip of a loop to begin are moved before the loop."""

from __future__ import annotations

from collections.abc import Callable

import frames
import numpy as np
import pytest
import tensorflow as tf
from rewriting import GraphDef, casts, low, module_of, rewritten, run, v1

from amp.graph_rewrite.graph import frames as frames_lib
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.frame_reads import hoist_frame_reads

Body = Callable[[tf.Tensor, tf.Tensor, tf.Variable], tf.Tensor]


def product(i: tf.Tensor, h: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.nn.relu(tf.matmul(h, w, name="product"))


def variable() -> tuple[tf.Tensor, tf.Variable]:
    x = v1.placeholder(tf.float32, [2, 4], name="x")
    given = v1.constant_initializer(frames.W)
    w = v1.get_variable("w", [4, 4], initializer=given, use_resource=True)
    tf.group(w.initializer, name="init")
    return x, w


def loop(
    body: Body, w: tf.Variable, begin: tf.Tensor, start: tf.Tensor | int = 0
) -> tf.Tensor:
    step = lambda i, h: (i + 1, body(i, h, w))  # noqa: E731
    begin = (start, tf.reverse(begin, [0]))
    return tf.while_loop(lambda i, _: i < 3, step, begin, name="loop")[1]


def trained() -> None:
    x, w = variable()
    last = tf.matmul(loop(product, w, x), w, name="last")
    tf.identity(tf.gradients(last, w)[0], name="dw")


def moved(proto: GraphDef) -> ir.Graph:
    module = hoist_frame_reads(module_of(proto))
    assert hoist_frame_reads(module).main is module.main
    return module.main


def read_of(graph: ir.Graph) -> ir.Node:
    """The read whose value the product gets."""
    enter = graph.nodes[graph.nodes["loop/product"].inputs[1][0]]
    return graph.nodes[enter.inputs[0][0]] if enter.op == "Enter" else enter


def in_loop(graph: ir.Graph) -> bool:
    return read_of(graph).name in frames_lib.frames(graph)


def before(graph: ir.Graph, node: ir.Node) -> set[str]:
    """The ops that have run when a node runs."""
    found, pending = set(), [node.name]
    while pending:
        at = graph.nodes[pending.pop()]
        found.add(at.op)
        pending += [edge[0] for edge in at.inputs] + list(at.controls)
    return found


def test_a_variable_is_read_once_and_cast_once_for_all_trips() -> None:
    proto = frames.proto(trained)
    twin = rewritten(proto, fetches=["last", "dw"], feeds=["x"])
    graph = module_of(twin.graph).main
    within = frames_lib.frames(graph)
    down = {n.name for n in casts(twin.graph) if "bfloat16" in n.name}
    assert low(twin.report)
    assert down
    assert not down & within.keys()


@pytest.mark.kernels
def test_values_stay_the_same() -> None:
    proto = frames.proto(trained)
    twin = rewritten(proto, fetches=["last", "dw"], feeds=["x"])
    feeds = {"x": frames.X}
    results = [run(p, ["last", "dw"], feeds) for p in (proto, twin.graph)]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_the_shape_of_what_was_read_is_known() -> None:
    graph = moved(frames.proto(trained))
    edge = graph.nodes["loop/product"].inputs[1]
    assert graph.shape(edge) == (4, 4)
    assert graph.shape((read_of(graph).name, 0)) == (4, 4)


def after_a_write() -> None:
    """The loop waits for a write, by a control input."""
    x, w = variable()
    with tf.control_dependencies([w.assign_add(tf.ones([4, 4]))]):
        tf.identity(loop(product, w, x), name="last")


def begun_by_a_write() -> None:
    """The first trip waits for a write, by the number that it begins with."""
    x, w = variable()
    with tf.control_dependencies([w.assign_add(tf.ones([4, 4]))]):
        start = tf.constant(0)
    tf.identity(loop(product, w, x, start), name="last")


@pytest.mark.kernels
@pytest.mark.parametrize("build", [after_a_write, begun_by_a_write])
def test_the_read_waits_for_what_the_loop_waited_for(build: Callable[[], None]) -> None:
    proto = frames.proto(build)
    graph = moved(proto)
    assert not in_loop(graph)
    assert "AssignAddVariableOp" in before(graph, read_of(graph))
    twin = rewritten(proto, fetches=["last"], feeds=["x"])
    want, got = (run(p, ["last"], {"x": frames.X})[0] for p in (proto, twin.graph))
    np.testing.assert_array_equal(want, got)


def test_a_loop_that_writes_the_variable_reads_it_on_every_trip() -> None:
    def build() -> None:
        x, w = variable()

        def body(i: tf.Tensor, h: tf.Tensor, w: tf.Variable) -> tf.Tensor:
            h = product(i, h, w)
            with tf.control_dependencies([w.assign_add(tf.ones([4, 4]))]):
                return tf.identity(h)

        tf.identity(loop(body, w, x), name="last")

    assert in_loop(moved(frames.proto(build)))


def test_a_read_that_waits_for_something_in_the_loop_stays_in_it() -> None:
    def build() -> None:
        x, w = variable()

        def body(i: tf.Tensor, h: tf.Tensor, w: tf.Variable) -> tf.Tensor:
            with tf.control_dependencies([tf.exp(h)]):
                return product(i, h, w)

        tf.identity(loop(body, w, x), name="last")

    assert in_loop(moved(frames.proto(build)))


def test_a_read_in_a_branch_stays_in_it() -> None:
    def build() -> None:
        x, w = variable()

        def body(i: tf.Tensor, h: tf.Tensor, w: tf.Variable) -> tf.Tensor:
            return tf.cond(i > 0, lambda: tf.matmul(h, w), lambda: h)

        tf.identity(loop(body, w, x), name="last")

    module = module_of(frames.proto(build))
    assert hoist_frame_reads(module).main is module.main


def test_a_read_leaves_nested_loops() -> None:
    def build() -> None:
        x, w = variable()
        inner = lambda i, h, w: loop(product, w, h)  # noqa: E731
        tf.identity(loop(inner, w, x), name="last")

    graph = moved(frames.proto(build))
    read = next(n for n in graph.nodes.values() if n.name.endswith("amp_read/amp_read"))
    assert read.name not in frames_lib.frames(graph)
