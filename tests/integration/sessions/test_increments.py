"""An increment stands by itself, and says what a rewrite made of what it reads."""

from __future__ import annotations

import rewriting
import tensorflow as tf
from session_graphs import model

from amp.graph_rewrite.graph import ir
from amp.integration.sessions import increments
from amp.integration.sessions.user_graph import Definitions


class Half:
    """A twin that has some nodes, one of them in 16 bits."""

    def __init__(self, graph, names, low):
        self.graph, self.names, self.low = graph, names, low

    def operation(self, name):
        found = name in self.names
        return self.graph.get_operation_by_name(name) if found else None

    def unchanged(self, name):
        return name in self.names and name not in self.low

    def steps(self, edge):
        return (ir.FLOAT,) if edge[0] in self.low else ()

    def behind(self, name):
        return name == "sub"


def part_of(low=()):
    with tf.Graph().as_default() as graph:
        parts = model(resource=False)
        known = Definitions()
        known.update(graph)
        placed = {node.name for node in known.needed(["sub"], lambda name: False)}
        half = Half(graph, placed, low)
        nodes = known.needed([parts["train"].name], placed.__contains__)
        return increments.increment(nodes, known, half), known, placed


def test_it_is_a_graph_of_new_nodes_and_stand_ins_that_imports():
    part, known, placed = part_of()
    names = {node.name for node in part.proto.node}
    assert names == set(part.fresh) | part.stand_ins | part.shown.keys()
    assert not placed & set(part.fresh)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(part.proto, name="")
    assert known.nodes["train"] in part.proto.node


def test_sources_are_seen_whole_and_the_rest_by_type_alone():
    part, _, _ = part_of()
    nodes = rewriting.nodes(part.proto)
    assert nodes["v"].op == "VariableV2"
    assert nodes["sub/amp_given_0"].op == "Placeholder"


def test_what_is_low_is_read_through_a_cast_that_a_rewrite_cancels():
    part, _, _ = part_of(low=("hidden",))
    cast = rewriting.nodes(part.proto)["hidden/amp_given_0_to_float32"]
    assert cast.op == "Cast"
    assert part.shown[cast.name] == ("hidden", 0)


def test_what_is_behind_a_marker_stays_behind_it():
    part, _, _ = part_of()
    nodes = rewriting.nodes(part.proto)
    assert nodes["sub/amp_given_0"].attr[ir.UNSCALE].b
    assert ir.UNSCALE not in nodes["hidden/amp_given_0"].attr


def test_who_reads_a_cast_of_a_value_reads_the_value():
    proto = rewriting.graph_def(rewriting.matmul_chain)
    made = rewriting.module_of(rewriting.rewritten(proto).graph).main
    nodes = [node for node in proto.node if node.name != "out"]  # fetched, moved aside
    assert increments.bypassed(nodes, made, {}) == {"w"}  # rounded on the spot
