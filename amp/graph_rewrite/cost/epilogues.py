"""Epilogues: nodes that TensorFlow merges into the product before them.

A merged node costs nothing of its own; a cast between the two would undo the merging.
Facts and who they are true of; no price and no choice may enter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir

# Seen in the graphs that Grappler's remapper left of training steps on a CPU
# (TensorFlow 2.21: `post_optimization_graph` of the run metadata): _FusedMatMul and
# _FusedConv2D with BiasAdd, and with one of these activations after it. Tanh, Sigmoid,
# LeakyRelu and GELU stayed apart, as did a bias added by AddV2.
_PRODUCTS = frozenset({"Conv2D", "MatMul"})
_BIAS = "BiasAdd"
_ACTIVATIONS = frozenset({"Elu", "Relu", "Relu6"})


def epilogues(
    graph: ir.Graph, typed: Mapping[str, Typed], context: Context
) -> Iterator[str]:
    """The nodes that are merged into the producer of their first input.

    Each is the only reader of what it reads; under XLA and emulation there are none.
    """
    if context.xla or context.policy.emulate:
        return
    seen = {result.edge[0] for result in graph.results} | context.fetched
    merged: set[str] = set()
    for name in graph.order:
        node = typed[name].node
        before = typed.get(node.inputs[0][0]) if node.inputs else None
        if before is None or before.node.name in seen:
            continue
        bias = node.op == _BIAS and before.node.op in _PRODUCTS
        activation = node.op in _ACTIVATIONS and before.node.name in merged
        if activation and before.node.op != _BIAS:
            continue
        alone = len(graph.readers[node.inputs[0]]) == 1
        if (bias or activation) and alone and not node.controls:
            merged.add(name)
            yield name
