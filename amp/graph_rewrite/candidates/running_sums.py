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
        yield from ((use, name) for name in _adds(graphs[use], own, edge))


def running_sums_in_frames(
    number: UseVariable, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[Member]:
    """The same for a loop variable of TensorFlow 1."""
    use, variable = number
    own = {(name, 1) for name in variable.switches}
    edge = graphs[use].nodes[variable.back].inputs[0]
    yield from ((use, name) for name in _adds(graphs[use], own, edge))


def _adds(graph: ir.Graph, own: set[ir.Edge], edge: ir.Edge) -> Iterator[str]:
    """The nodes by which the value at `edge` adds to the one at the edges `own`."""
    chain, pending = {edge[0]}, [edge]
    while pending:
        node = graph.nodes.get(pending.pop()[0])
        if node is not None and facts(node.op).kind in _TOTALS:
            pending += [source for source in node.inputs if source[0] not in chain]
            chain.update(source[0] for source in node.inputs)
    through: dict[str, bool] = {}  # nodes that the variable passes: whether one added
    for name in graph.order if own & graph.readers.keys() else ():
        node, kind = graph.nodes[name], facts(graph.nodes[name].op).kind
        if name in chain and kind in _TOTALS:
            from_variable = [e for e in node.inputs if e in own or e[0] in through]
            if from_variable:
                adds = kind is Kind.SUM
                through[name] = adds or any(
                    through.get(e[0], False) for e in from_variable
                )
    if through.get(edge[0], False):
        yield from through
