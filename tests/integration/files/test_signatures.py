"""A signature is cut out of a graph with all that it runs, and says what is left."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from amp.errors import GraphError
from amp.integration.files import signatures


@pytest.fixture
def meta() -> Any:
    """Two signatures, of which one calls a function."""
    with tf.Graph().as_default() as graph:
        double = tf.function(lambda x: x + x).get_concrete_function(
            tf.TensorSpec([2], tf.float32)
        )
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        tf.identity(double(x), "twice")
        tf.tanh(x, name="other")
    made = tf.compat.v1.MetaGraphDef(graph_def=graph.as_graph_def())
    for name, tensor in (("first", "twice:0"), ("second", "other:0")):
        made.signature_def[name].outputs["y"].name = tensor
    return made


def test_a_signature_has_the_nodes_that_it_runs_alone(meta: Any) -> None:
    part, tensors = signatures.graph(meta, "second", "model")
    assert [node.name for node in part.node] == ["x", "other"]
    assert tensors == ["other:0"]
    with pytest.raises(GraphError, match="there is no signature 'third'"):
        signatures.graph(meta, "third", "model")


def test_nodes_of_functions_are_counted_where_they_are_called(meta: Any) -> None:
    (function,) = meta.graph_def.library.function
    called, main = len(function.node_def), len(meta.graph_def.node)
    for name, count in (("first", main - 1 + called), ("second", 2)):
        part, _ = signatures.graph(meta, name, "model")
        said = signatures.part_of(meta, name, part)
        other = {"first": "second", "second": "first"}[name]
        assert said == (
            f"signature {name} alone, {count} of the graph's {main + called} nodes; "
            f"not in it: {other}"
        )
