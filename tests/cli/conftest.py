"""Graphs that the commands are tried on; no test lives here."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A GraphDef and a SavedModel of the same function."""
    place = tmp_path_factory.mktemp("graphs")
    module = tf.Module()
    module.weights = tf.Variable(tf.ones([8, 8]))
    spec = [tf.TensorSpec([4, 8])]

    @tf.function(input_signature=spec)
    def serve(x):
        return tf.tanh(tf.matmul(x, module.weights, name="product"))

    module.serve = serve
    tf.saved_model.save(module, str(place / "saved"))
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [4, 8], name="x")
        tf.tanh(tf.matmul(x, tf.ones([8, 8]), name="product"), name="y")
    for name in ("graph.pb", "graph.pbtxt"):
        tf.io.write_graph(built, str(place), name, as_text=name.endswith("txt"))
    return place
