"""Imports nodes into a `tf.Graph` through TensorFlow's C API.

The public `import_graph_def` sets up each operation in Python once more, which takes
four times as long. Used for the twins of session graphs and to infer shapes; which
nodes are imported, and when, is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorflow.python.client import pywrap_tf_session as api
from tensorflow.python.framework import c_api_util

from amp.graph_rewrite.graph import ir


def import_nodes(
    graph: Any, proto: Any, edges: Mapping[ir.Edge, Any], controls: Mapping[str, Any]
) -> None:
    """Imports nodes into a graph under their own names.

    Args:
      graph: the `tf.Graph`.
      proto: a GraphDef; none of its names is taken in the graph.
      edges: for each edge that the nodes read of the graph, its tensor.
      controls: for each control input from the graph, its operation, by name.

    Raises:
      tf.errors.InvalidArgumentError: TensorFlow refuses a node.
    """
    scoped = c_api_util.ScopedTFImportGraphDefOptions()
    options = scoped.options
    api.TF_ImportGraphDefOptionsSetPrefix(options, "")
    api.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
    # The node that a new one is colocated with may be in the graph already.
    api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
    for (name, index), tensor in edges.items():
        output = tensor._as_tf_output()
        api.TF_ImportGraphDefOptionsAddInputMapping(options, name, index, output)
    for name, operation in controls.items():
        api.TF_ImportGraphDefOptionsRemapControlDependency(
            options, name, operation._c_op
        )
    buffer = api.TF_NewBufferFromString(proto.SerializeToString())
    try:
        with graph._c_graph.get() as c_graph:
            results = api.TF_GraphImportGraphDefWithResults(c_graph, buffer, options)
        c_api_util.ScopedTFImportGraphDefResults(results)  # deletes them
    finally:
        api.TF_DeleteBuffer(buffer)
    graph._add_new_tf_operations(compute_devices=False)
