"""`sources`: what a run must be fed, and changes, if it executes a node."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, spec, traced, v1

from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.candidates.sources import needed, sources


def found(build, fed=frozenset()) -> dict[str, set[str]]:
    """The sources of each node, as the names of those that are sources themselves."""
    graph = module_of(graph_def(build)).main
    context = context_of(module_of(graph_def(build)))
    bits = sources(graph, type_ports(graph, context), fed)
    first: dict[int, str] = {}
    for name in graph.order:
        for bit in range(bits[name].bit_length()):
            if bits[name] >> bit & 1:
                first.setdefault(bit, name)
    return {name: {first[b] for b in first if bits[name] >> b & 1} for name in bits}


def build() -> None:
    x = v1.placeholder(tf.float32, [2, 2], name="x")
    y = v1.placeholder(tf.float32, [2, 2], name="y")
    value = v1.get_variable("v", initializer=np.eye(2, dtype="f"), use_resource=True)
    drawn = v1.random_uniform([2, 2], name="drawn")
    half = tf.multiply(x, value, name="half")
    tf.add(half, y, name="both")
    with tf.control_dependencies([tf.identity(drawn, name="mask")]):
        tf.identity(half, name="waits")


def test_a_node_has_the_sources_of_all_that_it_waits_for():
    of = found(build)
    assert of["half"] == {"x"}, "to read a variable changes nothing"
    assert of["both"] == {"x", "y"}
    assert len(of["waits"]) == 2
    assert of["waits"] == of["half"] | of["mask"]


def test_what_a_caller_may_feed_is_a_source_of_its_own():
    assert len(found(build, {"half"})["both"]) == 3


def test_what_a_loop_waits_for_on_its_later_trips_counts():
    def loop() -> None:
        v1.disable_control_flow_v2()
        y = v1.placeholder(tf.float32, [2], name="y")
        variables = (tf.constant(0), tf.zeros([2]), tf.zeros([2]))
        out = tf.while_loop(
            lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, b + y), variables
        )
        tf.identity(out[1], name="out")
        v1.enable_control_flow_v2()

    assert found(loop)["out"] == {"y"}


def test_a_function_runs_what_its_results_need_and_what_has_an_effect():
    variable = tf.Variable([1.0, 2.0])

    def function(x: tf.Tensor) -> tf.Tensor:
        y = tf.exp(x, name="read")
        with tf.control_dependencies([tf.tan(x, name="waited_for")]):
            z = tf.identity(y, name="returned")
        tf.multiply(y, tf.sin(x, name="unread"), name="unused")
        variable.assign(tf.cos(x, name="written"))
        return z

    graph = traced(function, spec(2))[0].main
    found = needed(graph)
    assert {"read", "waited_for", "returned", "written"} <= found
    assert found.isdisjoint({"unread", "unused"})
