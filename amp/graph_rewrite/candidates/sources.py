"""What a run of a session has to be fed, and what it changes, for each node.

A run executes what it asks for and no more. A rewrite that has a node wait for another
one must not have a run need a label or draw a number that it did without.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import Kind, facts


def sources(
    graph: ir.Graph, typed: Mapping[str, Typed], fed: Container[str]
) -> dict[str, int]:
    """The sources that each node depends on, as the bits of a number.

    A source is what the caller feeds, or a node that does more than give values: it
    writes, draws, or takes the next element. To read a variable changes nothing.

    Args:
      graph: the graph.
      typed: its nodes with their types.
      fed: nodes besides placeholders that a caller may feed.
    """
    given = (name for name, view in typed.items() if name in fed or _is_source(view))
    own = {name: 1 << number for number, name in enumerate(given)}
    found = dict.fromkeys(graph.nodes, 0)
    before: dict[str, int] = {}
    while found != before:  # twice, but for loops of TensorFlow 1
        before = dict(found)
        for name in graph.order:
            node, bits = graph.nodes[name], own.get(name, 0)
            for source, _ in node.inputs:
                bits |= found.get(source, 0)
            for source in node.controls:
                bits |= found.get(source, 0)
            found[name] = bits
    return found


def needed(graph: ir.Graph) -> set[str]:
    """The nodes of a function that run when it is called; TensorFlow drops the others.

    These are what results depend on, and what runs anyway: control results, and nodes
    with effects. Gradient code leaves many others, such as a gradient by a constant.
    """
    results = (result.edge[0] for result in graph.results)
    nodes = graph.nodes.values()
    stateful = (node.name for node in nodes if op_schema.is_stateful(node.op))
    return graph.needed_for((*results, *graph.control_results, *stateful))


def is_source(op: str, made: Collection[int]) -> bool:
    """Whether a node of an op is fed, or does more than to give values.

    Args:
      op: the op.
      made: the types of the tensors that the node makes.
    """
    if facts(op).kind in (Kind.PLACEHOLDER, Kind.WRITE):
        return True
    handle = bool(made) and ir.HANDLES.issuperset(made)
    return op_schema.is_stateful(op) and not facts(op).reads_state and not handle


def _is_source(view: Typed) -> bool:
    return is_source(view.node.op, view.signature.made)
