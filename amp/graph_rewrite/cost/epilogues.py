"""Finds epilogues: bias and activation nodes that Grappler merges into a product.

A merged node takes no time of its own, and a cast before it would prevent the merging.
The ops that take part are marked in the op table; no price and no choice may enter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Epilogue


def epilogues(
    graph: ir.Graph, typed: Mapping[str, Typed], context: Context
) -> Iterator[str]:
    """The names of the nodes that are merged into the producer of their first input.

    Each is the only reader of that input. There are none under XLA, which fuses by its
    own rules, nor under emulation.

    Args:
      graph: one function's.
      typed: its nodes.
      context: of the use.
    """
    if context.xla or context.policy.emulate:
        return
    seen = {result.edge[0] for result in graph.results} | context.fetched
    merged: set[str] = set()
    for name in graph.order:
        part = typed[name].facts.epilogue_on(context.device_type)
        if part is None:
            continue
        node = typed[name].node
        before = typed.get(node.inputs[0][0]) if node.inputs else None
        if before is None or before.node.name in seen:
            continue
        part_before = before.facts.epilogue_on(context.device_type)
        bias = part is Epilogue.BIAS and part_before is Epilogue.PRODUCT
        activation = part is Epilogue.ACTIVATION and before.node.name in merged
        if activation and part_before is not Epilogue.BIAS:
            continue
        only_reader = len(graph.readers[node.inputs[0]]) == 1
        if (bias or activation) and only_reader and not node.controls:
            merged.add(name)
            yield name
