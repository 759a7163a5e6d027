"""Who may be in a cluster, one rule a graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, v1

from amp.graph_rewrite.candidates.context import TypedGraph, type_ports
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.graph import ir


def members_of(build, **context) -> Members:
    module = module_of(graph_def(build))
    made = dataclasses.replace(context_of(module), **context)
    typed = type_ports(module.main, made)
    return Members(TypedGraph(module.main, made, typed))


def x32(shape=(4, 2)):
    return v1.placeholder(tf.float32, shape, name="x")


def test_an_elementwise_node_of_known_size_may():
    assert members_of(lambda: tf.tanh(x32(), name="n")).fusible("n")


@pytest.mark.parametrize(
    ("why", "build"),
    [
        ("no row", lambda: tf.maximum(x32(), 1.0, name="n")),
        ("no elementwise op", lambda: tf.matmul(x32((2, 2)), x32((2, 2)), name="n")),
        ("size unknown", lambda: tf.tanh(x32((None, 2)), name="n")),
        ("rank unknown", lambda: tf.tanh(x32(None), name="n")),
        ("no elements", lambda: tf.tanh(x32((0, 2)), name="n")),
        ("double", lambda: tf.tanh(v1.placeholder(tf.float64, [2]), name="n")),
        ("integers", lambda: tf.add(v1.placeholder(tf.int32, [2]), 1, name="n")),
        ("from integers", lambda: tf.cast(v1.placeholder(tf.int32, [2]), tf.float32,
                                          name="n")),
        ("booleans", lambda: tf.identity(tf.constant([True]), name="n")),
        ("moves what it copies", lambda: tf.transpose(x32(), [1, 0], name="n")),
        ("adds up", lambda: tf.reduce_sum(x32(), 0, name="n")),
        ("moves nothing, but XLA is not told what it reads", lambda: tf.tile(
            x32(), [1, 1], name="n")),
        ("a cast up, which is copied", lambda: tf.cast(v1.placeholder(
            tf.bfloat16, [2]), tf.float32, name="n")),
    ],
)  # fmt: skip
def test_others_may_not(why, build):
    assert not members_of(build).fusible("n"), why


@pytest.mark.parametrize(
    ("why", "build"),
    [
        ("shape computed", lambda: tf.reshape(x32(), v1.placeholder_with_default(
            [8], [1]), name="n")),
        ("no axis to add up along", lambda: tf.reduce_sum(
            x32(), tf.zeros([0], tf.int32), name="n")),
        ("the order that there is", lambda: tf.transpose(x32(), [0, 1], name="n")),
    ],
)  # fmt: skip
def test_what_hands_its_elements_on_may_whatever_its_integers_come_from(why, build):
    assert members_of(build).fusible("n"), why


@pytest.mark.parametrize("field", ["fetched", "fed"])
def test_what_a_caller_reads_or_feeds_by_name_may_not(field):
    members = members_of(lambda: tf.tanh(x32(), name="n"), **{field: frozenset({"n"})})
    assert not members.fusible("n")


@pytest.mark.parametrize("attr", [ir.KEEP, ir.EMULATED])
def test_what_is_kept_in_float32_may_and_what_is_emulated_may_not(attr):
    """In a cluster a kept node computes in float32 as ever."""

    def build():
        node = tf.tanh(x32(), name="n")
        node.op._set_attr(attr, v1.AttrValue(b=True))

    assert members_of(build).fusible("n") == (attr == ir.KEEP)


def test_casts_up_and_small_constants_are_copied():
    def build():
        low = v1.placeholder(tf.bfloat16, [4], name="low")
        tf.cast(low, tf.float32, name="up")
        tf.cast(tf.cast(low, tf.float32), tf.bfloat16, name="down")
        tf.constant(0.5, name="small")
        tf.constant(np.ones(17, np.float32), name="large")

    members = members_of(build)
    copied = {name for name in members.graph.nodes if members.copied(name)}
    assert copied == {"up", "small", "Cast"}
    assert members.bridges == {"up", "Cast", "down"}


def test_a_link_passes_through_a_cast_that_is_copied():
    def build():
        low = v1.placeholder(tf.bfloat16, [4], name="low")
        a = tf.tanh(low, name="a")
        tf.tanh(tf.cast(a, tf.float32, name="up"), name="b")

    links = set(members_of(build).links({"a", "b"}))
    assert ("a", "b", True) in links
    assert ("up", "b", False) not in links


def test_a_link_may_be_joined_between_nodes_of_one_size_and_device():
    def build():
        x = x32((4, 2))
        a = tf.tanh(x, name="a")
        tf.tanh(a, name="same")
        tf.add(a, v1.placeholder(tf.float32, [3, 4, 2]), name="larger")
        with tf.device("/CPU:1"):
            tf.tanh(a, name="apart")
        with tf.control_dependencies([a]):
            tf.tanh(x, name="after")

    members = members_of(build)
    links = set(members.links({n for n in members.graph.nodes if members.fusible(n)}))
    assert {(r, joins) for s, r, joins in links if s == "a"} == {
        *(("same", True), ("larger", False), ("apart", False), ("after", True))
    }


def test_a_result_is_given_if_another_needs_it():
    def build():
        low = v1.placeholder(tf.bfloat16, [4], name="low")
        a = tf.tanh(low, name="a")
        up = tf.cast(a, tf.float32, name="up")
        b = tf.tanh(up, name="b")
        tf.identity(b, name="reads_b")

    members = members_of(build)
    assert not members.given({"a", "b"}, "a")  # the cast is copied
    assert members.given({"a", "b"}, "b")
    assert members.given({"a"}, "a")  # by a cast that others read
    assert members.idle({"a", "b"}) == {"a", "b", "up"}
    assert members.idle({"a"}) == {"a"}
    assert members_of(build, fetched=frozenset({"up"})).given({"a", "b"}, "a")


def test_what_reads_a_reference_variable_may_not_and_is_not_copied():
    """A function's argument cannot be a reference."""

    def build():
        for name, dtype in (("high", tf.float32), ("low", tf.bfloat16)):
            v1.get_variable(name, [4], dtype, use_resource=False)
        reads = {n.name: n for n in v1.get_default_graph().get_operations()}
        tf.tanh(reads["high/read"].outputs[0], name="n")
        tf.raw_ops.Cast(x=reads["low"].outputs[0], DstT=tf.float32, name="up")

    members = members_of(build)
    assert not members.fusible("high/read")
    assert members.fusible("n")
    assert not members.copied("up")
