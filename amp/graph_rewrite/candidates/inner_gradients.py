"""Which nodes behind unscale markers stay float32: updates, and what leads to products.

A gradient may be part of a loss (a penalty, the residual of a differential equation),
or of what one is computed from (adversarial examples, meta-learning): then a further
gradient is taken of it. Up to the next product it is summed as in an update, in
float32. That product and what follows are a model as any other. Only of bfloat16: in
float16 such a gradient, which is unscaled, would need a scale. No type is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.candidates.context import Format
from amp.graph_rewrite.graph import ir, unscale_markers
from amp.graph_rewrite.ops.op_table import COMPUTE

_LEAST = 2.0**-126  # float32's smallest normal number


def kept(
    module: ir.Module,
    behind: Mapping[str, frozenset[str]],
    before: Mapping[str, frozenset[str]],
    format_: Format,
) -> Mapping[str, frozenset[str]]:
    """For each function, the nodes that stay float32 behind markers, these included.

    Args:
      module: as it is analyzed.
      behind: what is downstream of markers (`unscale_markers.behind_markers`).
      before: what markers are computed from (`unscale_markers.before_markers`).
      format_: the 16-bit type.
    """
    if format_.smallest > _LEAST or not any(behind.values()):
        return behind
    graphs = {graph.name: graph for graph in (*module.graphs(), module.main)}
    ends = {
        name: frozenset(n for n in nodes if graphs[name].nodes[n].op in COMPUTE)
        for name, nodes in before.items()
    }
    if all(ends[name].isdisjoint(nodes) for name, nodes in behind.items()):
        return behind
    return unscale_markers.behind_markers(module, ends)
