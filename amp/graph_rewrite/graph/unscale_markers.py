"""Which nodes are downstream of an unscale marker, and which one is computed from.

The marker is the attribute `ir.UNSCALE`, on the nodes that unscale gradients. No choice
of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from amp.graph_rewrite.graph import calls, dataset_loops, ir


def behind_markers(
    module: ir.Module, ends: Mapping[str, frozenset[str]] | None = None
) -> dict[str, frozenset[str]]:
    """For each function, the nodes that are an unscale marker or downstream of one.

    This includes other functions: a gradient unscaled in one function and applied in
    another is float32 in both. Repeats passes over all graphs until nothing changes.

    Args:
      module: the module.
      ends: for each function, nodes that are not counted, and hand nothing on.
    """
    return downstream(module, lambda node: node.flag(ir.UNSCALE), ends)


def before_markers(module: ir.Module) -> dict[str, frozenset[str]]:
    """For each function, the nodes that an unscale marker is computed from, and it.

    In other functions too, and in earlier trips of a loop.
    """
    graphs, picked = _picked(module, lambda node: node.flag(ir.UNSCALE))
    if not any(picked.values()):
        return picked
    state = {name: _Upstream(set(nodes)) for name, nodes in picked.items()}
    _walk(graphs, lambda graph: _mark_upstream(graph, state, module.functions))
    return {name: frozenset(marked.nodes) for name, marked in state.items()}


def downstream(
    module: ir.Module,
    starts: Callable[[ir.Node], bool],
    ends: Mapping[str, frozenset[str]] | None = None,
) -> dict[str, frozenset[str]]:
    """For each function, the nodes that a predicate picks, and all downstream of them.

    As `behind_markers`, in other functions too.

    Args:
      module: the module.
      starts: the predicate.
      ends: for each function, nodes that are not picked, and hand nothing on.
    """
    graphs, picked = _picked(module, starts)
    if not any(picked.values()):
        return picked
    none: frozenset[str] = frozenset()
    state = {
        name: _Downstream(nodes, none if ends is None else ends[name])
        for name, nodes in picked.items()
    }
    _walk(graphs, lambda graph: _mark_downstream(graph, state, module.functions))
    return {name: frozenset(marked.nodes) for name, marked in state.items()}


def _picked(
    module: ir.Module, pick: Callable[[ir.Node], bool]
) -> tuple[dict[str, ir.Graph], dict[str, frozenset[str]]]:
    """The graphs of a module, and the nodes of each that a predicate picks."""
    graphs = {graph.name: graph for graph in module.graphs()}
    graphs[module.main.name] = module.main
    return graphs, {
        name: frozenset(node.name for node in graph.nodes.values() if pick(node))
        for name, graph in graphs.items()
    }


def _walk(graphs: Mapping[str, ir.Graph], mark: Callable[[ir.Graph], bool]) -> None:
    """Walks all graphs again while walking one of them changes anything."""
    while sum(map(mark, graphs.values())):
        pass


@dataclasses.dataclass(slots=True)
class _Downstream:
    """What is downstream of some nodes in one function, as found so far.

    Attributes:
      starts: names of those nodes.
      ends: names of nodes that hand nothing on.
      nodes: names of nodes.
      args, results: numbers of the function's arguments and results.
    """

    starts: frozenset[str]
    ends: frozenset[str]
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
        if name in own.ends:
            continue
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


@dataclasses.dataclass(slots=True)
class _Upstream:
    """What some nodes are computed from in one function, as found so far.

    Attributes:
      nodes: names of nodes.
      read: by the name of a node or argument, its outputs that these read.
      args, results: numbers of the function's arguments and results.
    """

    nodes: set[str]
    read: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    args: set[int] = dataclasses.field(default_factory=set)
    results: set[int] = dataclasses.field(default_factory=set)

    def reads(self, edges: Iterable[ir.Edge]) -> None:
        for name, port in edges:
            self.read.setdefault(name, set()).add(port)


def _mark_upstream(
    graph: ir.Graph, state: dict[str, _Upstream], functions: Mapping[str, ir.Graph]
) -> bool:
    """Walks one graph against its edges, updating `state`; whether that may go on."""
    own = state[graph.name]
    before, changed = len(own.nodes), False
    own.reads(graph.results[i].edge for i in own.results)
    for name in reversed(graph.order):
        node = graph.nodes[name]
        outs = own.read.get(name, set())
        call = calls.call_of(node, functions)
        known = [f for f in calls.callees_of(node, call) if f in state] if call else []
        if call is None or not known:
            if outs or name in own.nodes:
                own.nodes.add(name)
                own.reads(node.inputs)
            continue
        last = state[known[-1]]
        for callee in [known[-1]] if call.loop or call.each else known:
            # A loop's result is an argument of the next trip.
            wanted = outs | dataset_loops.carried(node, call, last.args)
            changed |= not wanted <= state[callee].results
            state[callee].results |= wanted
        args = {arg for callee in known for arg in state[callee].args}
        args |= outs if call.loop else set()
        count = len(functions[known[-1]].args)
        for index, edge in enumerate(node.inputs):
            passed = dataset_loops.arguments_of(node, call, index, count)
            if not args.isdisjoint(passed):
                own.nodes.add(name)
                own.reads([edge])
    args = {i for i, arg in enumerate(graph.args) if arg.name in own.read}
    changed |= not args <= own.args or len(own.nodes) > before
    own.args |= args
    return changed
