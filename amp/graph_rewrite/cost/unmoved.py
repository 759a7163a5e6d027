"""Tells nodes that hand their operand on as it is, at the call that plans are made for.

What a trace of unknown sizes has more of than one of known sizes: a sum over the axes
of a broadcast that turn out to be none, a transposition that keeps the order. They cost
nothing, and need not end a cluster. No result may depend on it, since a later call may
have other sizes; nothing is priced here.
"""

from __future__ import annotations

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost.op_instance import constant
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.shapes import elements, whole
from amp.graph_rewrite.ops.op_table import Unmoved


def moves_nothing(graph: ir.Graph, view: Typed) -> bool:
    """Whether a node's kernel hands on the memory of its first operand.

    Args:
      graph: the node's, with the sizes of a call.
      view: the node.
    """
    unmoved = view.facts.unmoved
    if unmoved is Unmoved.NEVER:  # nearly all are asked about, several times
        return False
    same = _same_count if unmoved is Unmoved.SAME_COUNT else _same_order
    return same(graph, view.node)


def _same_count(graph: ir.Graph, node: ir.Node) -> bool:
    given, made = graph.size(node.inputs[0]), graph.size((node.name, 0))
    return whole(given) and whole(made) and elements(given) == elements(made)


def _same_order(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether a permutation is known, and only moves axes of one element, if any."""
    given, order = graph.size(node.inputs[0]), constant(graph, node.inputs[1])
    if order is None or (given is not None and len(given) != len(order)):
        return False  # the rank was assumed, and is another
    axes = [int(axis) % len(order) for axis in order]
    longer = [axis for axis in axes if given is None or given[axis] != 1]
    return longer == sorted(longer)
