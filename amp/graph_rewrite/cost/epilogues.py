"""Epilogues: nodes that TensorFlow merges into the product before them.

A merged node costs nothing of its own; a cast between the two would undo the merging.
Which ops take part is in their rows; no price and no choice may enter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Epilogue


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
        part, taker = typed[name].facts.epilogue, before.facts.epilogue
        bias = part is Epilogue.BIAS and taker is Epilogue.PRODUCT
        activation = part is Epilogue.ACTIVATION and before.node.name in merged
        if activation and taker is not Epilogue.BIAS:
            continue
        alone = len(graph.readers[node.inputs[0]]) == 1
        if (bias or activation) and alone and not node.controls:
            merged.add(name)
            yield name
