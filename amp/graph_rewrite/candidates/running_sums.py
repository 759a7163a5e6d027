"""Running sums: loop variables to which a loop adds on every trip.

Only recognises them; that they stay float32 is the rule of `propagation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.call_values import (
    Carried,
    Member,
    UseVariable,
)
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Kind, facts

# The ops between a loop variable and the value that a running sum returns for it.
_TOTALS = (Kind.SUM, Kind.IDENTITY)


def running_sums(
    value: Carried, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[Member]:
    """The nodes by which a loop adds to a loop variable on every trip.

    Such sums (gradients of an RNN's weights, totals) stay float32: a 16-bit sum loses
    all terms below half a unit in its last place (Higham, Accuracy and Stability of
    Numerical Algorithms, ch. 4).
    """
    if value.begins is not None:
        ((use, edge),) = value.returned
        own = {place[1] for place in value.made if place[0] == use}
        added = _adds(graphs[use], own, edge)
        yield from ((use, name) for name in graphs[use].order if name in added)


def running_sums_in_frames(
    number: UseVariable, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[Member]:
    """The same for a loop variable of TensorFlow 1."""
    use, variable = number
    own = {(name, 1) for name in variable.switches}
    edge = graphs[use].nodes[variable.back].inputs[0]
    yield from ((use, name) for name in _adds(graphs[use], own, edge))


def _adds(graph: ir.Graph, own: set[ir.Edge], edge: ir.Edge) -> dict[str, bool]:
    """The nodes by which the value at `edge` adds to the one at the edges `own`.

    Takes time linear in these nodes and what they add.
    """
    through: dict[str, bool] = {}  # nodes that the variable passes: whether one added
    pending, seen = [edge[0]], set()
    while pending:
        name = pending[-1]
        node = graph.nodes.get(name)
        kind = None if node is None else facts(node.op).kind
        if node is None or kind not in _TOTALS or name in through:
            pending.pop()
        elif name not in seen:
            seen.add(name)
            pending += [source for source, _ in node.inputs if source not in seen]
        else:
            pending.pop()
            sources = [e for e in node.inputs if e in own or e[0] in through]
            if sources:
                added = any(through.get(e[0], False) for e in sources)
                through[name] = kind is Kind.SUM or added
    return through if through.get(edge[0], False) else {}
