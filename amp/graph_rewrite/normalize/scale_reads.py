"""Whether a step reads its loss scale for more than to scale by it.

A program that multiplies a threshold of its own by the scale does. What a copy of its
gradients gives at another scale then says nothing of the step. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amp.graph_rewrite.graph import ir


def outside_seeds(step: ir.Graph, copy: ir.Graph) -> bool:
    """Whether the gradients of a step depend on its scale otherwise than by the seeds.

    Args:
      step: the graph in which the seeds are scaled.
      copy: its copy that computes gradients, whose seeds take the scale as an argument.
    """
    scales = [n.inputs[1] for n in step.nodes.values() if n.flag(ir.SEED)]
    read = {*scales, *_read(step, scales)}
    roots = {edge for edge in read if _is_root(step, edge)}
    results = [result.edge for result in copy.results]
    return not roots.isdisjoint(_read(copy, results))


def _read(graph: ir.Graph, edges: Iterable[ir.Edge]) -> Iterator[ir.Edge]:
    """What is read on the way to edges."""
    for name in graph.computed_from(edges):
        node = graph.nodes.get(name)
        yield from node.inputs if node is not None else ()


def _is_root(graph: ir.Graph, edge: ir.Edge) -> bool:
    """Whether an edge is an argument, or made of nothing, as a variable's handle."""
    node = graph.nodes.get(edge[0])
    return node is None or not node.inputs
