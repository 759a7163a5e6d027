"""Has TensorFlow infer the shapes of nodes, and reads the shapes of a call's arguments.

Used wherever a module is rewritten, for the sizes that its trace leaves unknown. Which
nodes are asked about is decided in `graph_rewrite.normalize`; nothing runs here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.normalize.size_questions import RefusedError
from amp.graph_rewrite.normalize.sizes import SizesAtCall
from amp.integration.runtime import definitions
from amp.integration.runtime.node_import import import_nodes

# How TensorFlow's errors name the node that they are about.
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


def infer(nodes: Sequence[ir.Node]) -> ir.ShapeSource:
    """The shapes of the outputs of nodes that read nothing but one another.

    Args:
      nodes: none of them pristine.

    Raises:
      RefusedError: TensorFlow refuses a node.
    """
    graph = tf.Graph()
    proto = serde.write_nodes(nodes)
    # To older graphs a placeholder's shape of () means that it is not known.
    proto.versions.producer = tf.version.GRAPH_DEF_VERSION
    try:
        import_nodes(graph, proto, {}, {})
    except tf.errors.OpError as e:
        named = _NODE.search(e.message)
        raise RefusedError(named[1] if named else "") from e

    def shape(edge: ir.Edge) -> ir.Shape:
        operation = graph.get_operation_by_name(edge[0])
        return definitions.dimensions(operation.outputs[edge[1]].shape)

    return shape


def at_call(
    inputs: Sequence[Any],
    tensors: Mapping[ir.Edge, ir.Shape] | None = None,
    elements: Sequence[Sequence[ir.Shape]] = (),
) -> SizesAtCall:
    """What a call tells of sizes.

    Args:
      inputs: the tensors that the function is called with; () if there is no call yet,
        so that the sizes of arguments are assumed.
      tensors: shapes of further tensors of its graph, by edge.
      elements: as of `SizesAtCall`.
    """
    args = tuple(definitions.dimensions(tensor.shape) for tensor in inputs)
    return SizesAtCall(infer, args, tensors or {}, elements)
