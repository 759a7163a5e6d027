"""Makes loop invariants explicit: unchanging loop variables, and variable reads.

Changes structure only: no types, no cost. What is computed stays the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import Call
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.normalize.inline import merged_device
from amp.graph_rewrite.normalize.variable_reads import (
    only_read,
    only_reads,
    reads_float32,
    redirected,
    shared,
)
from amp.graph_rewrite.ops.op_table import Kind, facts


def hoist_invariants(module: ir.Module) -> ir.Module:
    """Rewrites every loop whose functions nothing else calls, and shares reads.

    1. A body result that is an argument behind Identities becomes that argument's
       edge, so that `invariant` recognises it; readers of such a result of the loop
       read the loop's input instead.
    2. A float32 variable that a loop only reads is read once, before the loop, and
       passed in::

         while ...: y = f(read(v))    ->    w = read(v); while ...: y = f(w)

       The read waits for all that the loop waits for, also by its data: without
       automatic control dependencies, an update may come before the loop by that alone.
       Nodes that wait for the loop thereby wait for the read. A loop that runs Python
       may write every variable.

    In every function, several reads of a variable before its first write become one
    (`variable_reads.shared`).
    """
    graphs = {graph.name: graph for graph in module.graphs()}
    counts = Counter(
        name
        for graph in graphs.values()
        for node, call in calls.calls(graph, module.functions)
        for name in calls.callees_of(node, call)
    )
    python = python_calls.running(module)
    for use in reversed(calls.uses_with_weights(module)):  # callees first
        if use.name in module.functions or use.name == module.main.name:
            _rewrite_loops(graphs, use.name, module, counts, python)
    functions = {name: graphs[name] for name in module.functions}
    return ir.Module(graphs[module.main.name], functions)


def _rewrite_loops(
    graphs: dict[str, ir.Graph],
    name: str,
    module: ir.Module,
    counts: Counter[str],
    python: frozenset[str],
) -> None:
    nodes = dict(graphs[name].nodes)
    shapes: dict[ir.Edge, ir.Shape] = {}  # of the reads that are moved before a loop
    loop_of_read: dict[str, str] = {}
    same: dict[ir.Edge, ir.Edge] = {}
    for node, call in calls.calls(graphs[name], module.functions):
        if not call.loop or any(
            function not in module.functions or counts[function] != 1
            for function in calls.callees_of(node, call)
        ):
            continue
        cond, body = calls.callees_of(node, call)
        graphs[body] = _with_named_invariants(graphs[body])
        if name:  # a GraphDef's tensors may be references, which a loop reads once
            same |= _read_before(node, graphs[body])
        if not python.isdisjoint((cond, body)):
            continue
        added = _hoist(graphs, nodes, (node.name, call, cond, body))
        loop_of_read |= dict.fromkeys((read for read, _ in added), node.name)
        shapes |= added
    if shapes:
        graphs[name] = _shaped(graphs[name].with_nodes(nodes), shapes)
    if same:
        graphs[name] = redirected(graphs[name], _followed(same))
    if name:  # in a GraphDef, a session may run reads and writes in any order
        graphs[name] = shared(
            graphs[name],
            loop_of_read,
            functools.partial(only_reads, graphs),
            python_calls.nodes(graphs[name], python),
        )


def _followed(same: Mapping[ir.Edge, ir.Edge]) -> dict[ir.Edge, ir.Edge]:
    """A map of edges to edges that none of them is mapped from."""
    found = {}
    for edge, other in same.items():
        while other in same:
            other = same[other]
        found[edge] = other
    return found


def invariant(body: ir.Graph) -> Iterator[int]:
    """The numbers of the loop variables that a body returns unchanged."""
    for index, (arg, result) in enumerate(zip(body.args, body.results, strict=True)):
        if result.edge == (arg.name, 0):
            yield index


def _with_named_invariants(body: ir.Graph) -> ir.Graph:
    """The body with invariant results that are the argument edges themselves."""
    results = []
    for arg, result in zip(body.args, body.results, strict=True):
        edge = result.edge
        while edge[0] in body.nodes and _is_identity(body.nodes[edge[0]]):
            edge = body.nodes[edge[0]].inputs[0]
        same = edge == (arg.name, 0)
        results.append(dataclasses.replace(result, edge=edge) if same else result)
    return _without_dead(body.with_nodes(body.nodes, tuple(results)), body)


def _is_identity(node: ir.Node) -> bool:
    return facts(node.op).kind is Kind.IDENTITY


def _without_dead(graph: ir.Graph, before: ir.Graph) -> ir.Graph:
    """The graph without the Identities that only the results of `before` read."""
    loose = [old.edge[0] for old, new in zip(before.results, graph.results, strict=True)
             if old.edge != new.edge]  # fmt: skip
    read = Counter(edge[0] for node in graph.nodes.values() for edge in node.inputs)
    read.update(name for node in graph.nodes.values() for name in node.controls)
    read.update(result.edge[0] for result in graph.results)
    read.update(graph.control_results)
    nodes = dict(graph.nodes)
    while loose:
        name = loose.pop()
        if name in nodes and not read[name]:
            node = nodes.pop(name)
            sources = [edge[0] for edge in node.inputs]
            read.subtract([*sources, *node.controls])
            loose += [s for s in sources if s in nodes and _is_identity(nodes[s])]
    return graph.with_nodes(nodes) if len(nodes) < len(graph.nodes) else graph


def _read_before(loop: ir.Node, body: ir.Graph) -> dict[ir.Edge, ir.Edge]:
    """For each invariant float32 result of a loop, the input that it is."""
    return {
        (loop.name, index): loop.inputs[index]
        for index in invariant(body)
        if body.args[index].type == ir.FLOAT
    }


def _hoist(
    graphs: dict[str, ir.Graph],
    nodes: dict[str, ir.Node],
    loop: tuple[str, Call, str, str],
) -> dict[ir.Edge, ir.Shape]:
    """Moves reads of variables before a loop (2. of `hoist_invariants`).

    Args:
      graphs: all functions by name; condition and body are updated in place.
      nodes: of the caller; updated in place.
      loop: the loop node's name, how it calls, its condition and its body.

    Returns:
      The tensors that are read before the loop now, with their shapes.
    """
    at, call, cond, body = loop
    found = list(_reads(graphs, cond, body))
    if not found:
        return {}
    node = nodes[at]
    waits = tuple(_waits(nodes, node))
    added, ports, moved = [], [], {}
    for number, (index, read) in enumerate(found):
        made = f"{at}/amp_read_{number}"
        while made in nodes:  # a read of an outer loop that was hoisted here
            made += "_"
        source = graphs[body].nodes[read]
        shape = graphs[body].shape((read, 0))
        nodes[made] = dataclasses.replace(
            source,
            name=made,
            inputs=(node.inputs[index],),
            controls=waits,
            device=merged_device(source.device, node.device),
            pristine=False,
        )
        added.append(((made, 0), ir.FLOAT, shape))
        port = f"amp_{made.replace('/', '_')}".lower()
        ports.append((ir.Argument(port, ir.FLOAT), shape))
        moved[read, 0] = (port, 0)
    nodes[at] = calls.extended(node, call, added)
    args = tuple(arg for arg, _ in ports)
    sizes = {(arg.name, 0): shape for arg, shape in ports}
    wider = _shaped(widened(graphs[body], args, results=True), sizes)
    graphs[body] = redirected(wider, moved)
    graphs[cond] = _shaped(widened(graphs[cond], args, results=False), sizes)
    return {edge: shape for edge, _, shape in added}


def _waits(nodes: Mapping[str, ir.Node], loop: ir.Node) -> Iterator[str]:
    """What a loop waits for, but for what itself waits for nothing."""
    yield from loop.controls
    for name in dict.fromkeys(name for name, _ in loop.inputs):
        node = nodes.get(name)  # none is an argument
        begins = node is None or not (node.inputs or node.controls)
        if not begins and name not in loop.controls:
            yield name


def _reads(
    graphs: dict[str, ir.Graph], cond: str, body: str
) -> Iterator[tuple[int, str]]:
    """The (argument number, node) of each float32 read in a loop's body that can move.

    The variable is passed unchanged and neither body nor condition writes it.
    """
    inside = graphs[body]
    for index in invariant(inside):
        arg = inside.args[index]
        if arg.type != ir.RESOURCE or not only_read(graphs, body, index):
            continue
        if not only_read(graphs, cond, index):
            continue
        for name, _ in inside.readers.get((arg.name, 0), ()):
            node = inside.nodes[name]
            if reads_float32(node) and inside.readers.get((name, 0)):
                yield index, name


def widened(graph: ir.Graph, args: tuple[ir.Argument, ...], results: bool) -> ir.Graph:
    """A function with further arguments, returned as results too if `results`."""
    passed = tuple(ir.Result(f"{a.name}_out", a.type, (a.name, 0)) for a in args)
    return dataclasses.replace(
        graph,
        args=graph.args + args,
        results=graph.results + passed if results else graph.results,
    )


def _shaped(graph: ir.Graph, known: dict[ir.Edge, ir.Shape]) -> ir.Graph:
    """The graph with the shapes of some more edges."""

    def known_too(before: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: known[edge] if edge in known else before(edge)

    return graph.with_shapes(known_too)
