"""Copies of a function that also return the tensors inside it, to be looked at.

What a function takes from elsewhere (a batch of an iterator, a random number) must be
the same on both sides of a pair, so such tensors are recorded once and are arguments of
every copy. Operations that change something but variables are not in the copies.

Nothing is run here, and which tensors are looked at is decided in `pair`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from amp.graph_rewrite.comparison import pairing
from amp.graph_rewrite.comparison.pair import edge_type
from amp.graph_rewrite.comparison.pairing import Taken
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.normalize.inline import inline

_GIVEN, _SEEN = "amp_given", "amp_seen"


def flat(module: ir.Module) -> ir.Module:
    """The module with every call inlined that can be, also those that XLA compiles.

    What a plan decided stays; this is for looking only.
    """
    stripped = [_without_marks(graph) for graph in module.graphs()]
    by_name = {graph.name: graph for graph in stripped[1:]}
    return inline(ir.Module(stripped[0], by_name))


def _without_marks(graph: ir.Graph) -> ir.Graph:
    """A function without what it and its calls say of how they are to run."""
    off = {calls.MUST_COMPILE: False, ir.KEEP: False}
    nodes = {
        name: node.changed(updates=off)
        if calls.calls_once(node.op) and any(map(node.flag, off))
        else node
        for name, node in graph.nodes.items()
    }
    unmarked = dataclasses.replace(graph, nodes=nodes, flags=frozenset())
    return dataclasses.replace(unmarked, attributes=frozenset())


def copy(
    module: ir.Module, taken: Taken, edges: Sequence[ir.Edge], name: str
) -> ir.Module:
    """A copy of one side that takes what was recorded and returns tensors.

    Args:
      module: either side of a pair.
      taken: what was recorded, of the side in float32.
      edges: the tensors to return.
      name: of the copy.
    """
    graph, lookup = module.main, op_schema.lookup_of(module)
    given = {edge: (f"{_GIVEN}_{i}", 0) for i, (edge, _) in enumerate(taken.tensors)}
    gone = taken.dropped | {edge[0] for edge in given}
    nodes = {
        node.name: _in_copy(node, given, gone)
        for node in graph.nodes.values()
        if node.name not in gone
    }
    args = [*graph.args]
    args += [ir.Argument(given[edge][0], number) for edge, number in taken.tensors]
    seen = [(edge, edge_type(graph, edge, lookup)) for edge in edges]
    results = tuple(
        ir.Result(f"{_SEEN}_{i}", number, given.get(edge, edge))
        for i, (edge, number) in enumerate(seen)
    )
    ends = tuple(end for end in graph.control_results if end not in gone)
    made = ir.Graph(name, nodes, tuple(args), results, ends, shape=graph.shape)
    return pairing.seeded(ir.Module(made, module.functions))


def _in_copy(
    node: ir.Node, given: Mapping[ir.Edge, ir.Edge], gone: Collection[str]
) -> ir.Node:
    inputs = tuple(given.get(edge, edge) for edge in node.inputs)
    controls = tuple(name for name in node.controls if name not in gone)
    if inputs == node.inputs and controls == node.controls:
        return node
    return dataclasses.replace(node, inputs=inputs, controls=controls, pristine=False)


def recorder(module: ir.Module, taken: Taken, name: str) -> ir.Module:
    """The function in float32, whole, that returns what it takes from elsewhere."""
    main = module.main
    results = tuple(
        ir.Result(f"{_SEEN}_{i}", number, edge)
        for i, (edge, number) in enumerate(taken.tensors)
    )
    ends = main.control_results
    made = ir.Graph(name, main.nodes, main.args, results, ends, shape=main.shape)
    return ir.Module(made, module.functions)
