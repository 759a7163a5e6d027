"""Whether a step reads its loss scale for more than to scale by it.

A program that multiplies a threshold of its own by the scale does. What a copy of its
gradients gives at another scale then says nothing of the step. Nothing is run here.
"""

from __future__ import annotations

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.gradients_only import upstream


def outside_seeds(step: ir.Graph, copy: ir.Graph) -> bool:
    """Whether the gradients of a step depend on its scale otherwise than by the seeds.

    Args:
      step: the graph in which the seeds are scaled.
      copy: its copy that computes gradients, whose seeds take the scale as an argument.
    """
    scales = [n.inputs[1] for n in step.nodes.values() if n.flag(ir.SEED)]
    behind = (step.nodes[name] for name in upstream(step, scales, lambda node: True))
    read = {*scales, *(edge for node in behind for edge in node.inputs)}
    roots = {edge for edge in read if _is_root(step, edge)}
    results = [result.edge for result in copy.results]
    live = (copy.nodes[name] for name in upstream(copy, results, lambda node: True))
    return any(not roots.isdisjoint(node.inputs) for node in live)


def _is_root(graph: ir.Graph, edge: ir.Edge) -> bool:
    """Whether an edge is an argument, or made of nothing, as a variable's handle."""
    node = graph.nodes.get(edge[0])
    return node is None or not node.inputs
