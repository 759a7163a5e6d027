"""Which nodes are downstream of an unscale marker, and so have to stay float32.

The marker is the attribute `ir.UNSCALE`, on the nodes that unscale gradients. No choice
of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.graph import calls, dataset_loops, ir


def behind_markers(module: ir.Module) -> dict[str, frozenset[str]]:
    """For each function, the nodes that are an unscale marker or downstream of one.

    This includes other functions: a gradient unscaled in one function and applied in
    another is float32 in both. Repeats passes over all graphs until nothing changes.
    """
    return downstream(module, lambda node: node.flag(ir.UNSCALE))


def downstream(
    module: ir.Module, starts: Callable[[ir.Node], bool]
) -> dict[str, frozenset[str]]:
    """For each function, the nodes that a predicate picks, and all downstream of them.

    As `behind_markers`, in other functions too.
    """
    graphs = {graph.name: graph for graph in module.graphs()}
    graphs[module.main.name] = module.main
    picked = {
        name: frozenset(node.name for node in graph.nodes.values() if starts(node))
        for name, graph in graphs.items()
    }
    if not any(picked.values()):
        return picked
    state = {name: _Downstream(nodes) for name, nodes in picked.items()}
    changed = True
    while changed:
        changed = False
        for graph in graphs.values():
            changed |= _mark_downstream(graph, state, module.functions)
    return {name: frozenset(marked.nodes) for name, marked in state.items()}


@dataclasses.dataclass(slots=True)
class _Downstream:
    """What is downstream of some nodes in one function, as found so far.

    Attributes:
      starts: names of those nodes.
      nodes: names of nodes.
      args, results: numbers of the function's arguments and results.
    """

    starts: frozenset[str]
    nodes: set[str] = dataclasses.field(default_factory=set)
    args: set[int] = dataclasses.field(default_factory=set)
    results: set[int] = dataclasses.field(default_factory=set)


def _mark_downstream(
    graph: ir.Graph,
    state: dict[str, _Downstream],
    functions: Mapping[str, ir.Graph],
) -> bool:
    """Walks one graph, updating `state`; whether anything its callers or callees see
    (arguments and results) has changed."""
    own = state[graph.name]
    edges = {(graph.args[i].name, 0) for i in own.args}
    marked_nodes: set[str] = set()
    changed = False
    for name in graph.order:
        node = graph.nodes[name]
        sources = enumerate(node.inputs)
        marked = [i for i, e in sources if e[0] in marked_nodes or e in edges]
        if marked or name in own.starts:
            own.nodes.add(name)
        call = calls.call_of(node, functions)
        known = [f for f in calls.callees_of(node, call) if f in state] if call else []
        if call is None or not known:
            if marked or name in own.starts:
                marked_nodes.add(name)
            continue
        count = len(functions[known[-1]].args)
        passed = {
            a for i in marked for a in dataset_loops.arguments_of(node, call, i, count)
        } | dataset_loops.carried(node, call, state[known[-1]].results)
        for callee in known:
            changed |= not passed <= state[callee].args
            state[callee].args |= passed
            if not call.loop:
                edges |= {(name, i) for i in state[callee].results}
        if call.loop:  # its results are its arguments, not what its condition returns
            edges |= {(name, i) for i in passed}
        if call.each and (marked or state[known[-1]].results):
            marked_nodes.add(name)  # all elements of the dataset that it makes
    results = {
        i
        for i, result in enumerate(graph.results)
        if result.edge[0] in marked_nodes or result.edge in edges
    }
    changed |= not results <= own.results
    own.results |= results
    return changed
