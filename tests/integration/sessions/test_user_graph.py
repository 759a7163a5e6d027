"""Definitions follow a graph as it grows, and know what depends on what."""

from __future__ import annotations

import tensorflow as tf
from session_graphs import model, v1

from amp.integration.sessions import user_graph
from amp.integration.sessions.user_graph import Definitions


def nothing(name):
    """Says that nothing is there."""
    return False


def test_definitions_are_those_of_the_graph_however_it_grew():
    with tf.Graph().as_default() as graph:
        known = Definitions()
        for count in (1, 3, user_graph._MANY + 1):
            for _ in range(count):
                tf.constant(1.0)
            assert known.behind(graph)
            known.update(graph)
            assert not known.behind(graph)
        tf.function(lambda x: tf.matmul(x, x))(tf.ones([2, 2]))
        known.update(graph)
    assert list(known.nodes.values()) == list(graph.as_graph_def().node)
    assert list(known.order) == list(known.nodes)


def test_what_a_run_needs_is_closed_and_no_more():
    with tf.Graph().as_default() as graph:
        parts = model()
        known = Definitions()
        known.update(graph)
        nodes = known.needed([parts["out"].op.name], nothing)
    names = [node.name for node in nodes]
    sources = {name for node in nodes for name in user_graph.sources_of(node)}
    assert sources <= set(names)
    assert "loss" not in names
    assert names == sorted(names, key=known.order.__getitem__)
    assert set(names) >= known.ancestors(["out"])


def test_a_node_brings_those_whose_names_are_its_scopes():
    """A graph that has `a/b` imports no `a`."""
    with tf.Graph().as_default() as graph:
        with tf.name_scope("a") as scope:
            inner = tf.constant(1.0, name="b")
            tf.identity(inner, name=scope)
        known = Definitions()
        known.update(graph)
    names = [node.name for node in known.needed(["a/b"], nothing)]
    assert names == ["a/b", "a"]


def test_functions_are_searched_for_what_computes():
    with tf.Graph().as_default() as graph:
        inner = tf.function(lambda x: tf.matmul(x, x))
        out = tf.function(lambda x: inner(x) + 1)(tf.ones([2, 2]))
        plain = tf.function(lambda x: x + 1)(tf.ones([2, 2]))
        known = Definitions()
        known.update(graph)
        found = [
            known.compute(known.needed([tensor.op.name], nothing))
            for tensor in (out, plain)
        ]
    assert found == [True, False]


def test_functions_are_read_and_not_changed():
    """An interface, even an empty one, keeps TensorFlow from inlining a function."""
    with tf.Graph().as_default() as graph:
        tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
        known = Definitions()
        known.update(graph)
        nodes = list(known.nodes.values())
    before = {f.signature.name: f for f in graph.as_graph_def().library.function}
    known.compute(nodes)
    found = known.library(nodes).function
    assert found
    assert all(function == before[function.signature.name] for function in found)


def test_state_before_computing_is_had_by_all():
    with tf.Graph().as_default() as graph:
        parts = model(resource=False)
        early = v1.random_uniform([2, 4], name="early")
        v1.random_uniform(tf.shape(parts["out"]), name="late")
        tf.add(early, 1.0, name="sum")
        nodes = graph.as_graph_def().node
    names = user_graph.before_compute(nodes)
    assert {"w", "early/RandomUniform", "early/shape"} <= names
    assert not names & {"late/RandomUniform", "sum", "first"}
