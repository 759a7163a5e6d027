"""Makes loops plain: what does not change in a loop passes straight through it.

Structure only: no types beyond float32, no cost. Values stay what they were.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import Call
from amp.graph_rewrite.normalize.variable_reads import (
    reads_float32,
    redirected,
    shared,
)
from amp.graph_rewrite.ops.op_table import Kind, facts


def hoist_invariants(module: ir.Module) -> ir.Module:
    """The module with, in every loop whose functions nothing else calls:

    1. results that are an argument's own value named as that argument, so that an
       invariant can be told by a look, and read before the loop by its readers;
    2. float32 variables that the loop only reads read once, before it, and passed in::

         while ...: y = f(read(v))    ->    w = read(v); while ...: y = f(w)

       The read keeps the loop's control inputs, and what is ordered after the loop is
       ordered after the read.

    And in every function a variable is read once before it is first written.
    """
    graphs = {graph.name: graph for graph in module.graphs()}
    counts = Counter(
        name
        for graph in graphs.values()
        for node, call in calls.calls(graph, module.functions)
        for name in calls.callees_of(node, call)
    )
    for use in reversed(calls.uses_with_weights(module)):  # callees first
        if use.name in module.functions or use.name == module.main.name:
            _mend(graphs, use.name, module, counts)
    functions = {name: graphs[name] for name in module.functions}
    return ir.Module(graphs[module.main.name], functions)


def _mend(
    graphs: dict[str, ir.Graph], name: str, module: ir.Module, counts: Counter[str]
) -> None:
    made: dict[str, str] = {}
    for node, call in list(calls.calls(graphs[name], module.functions)):
        if not call.loop or any(
            function not in module.functions or counts[function] != 1
            for function in calls.callees_of(node, call)
        ):
            continue
        cond, body = calls.callees_of(node, call)
        graphs[body] = _named(graphs[body])
        if name:  # a GraphDef's tensors may be references, which a loop reads once
            graphs[name] = _read_before(graphs[name], node.name, graphs[body])
        before = graphs[name].nodes.keys()
        _hoist(graphs, name, (node.name, call, cond, body))
        made |= dict.fromkeys(graphs[name].nodes.keys() - before, node.name)
    if name:  # what a GraphDef's session orders, nobody knows
        graphs[name] = shared(
            graphs[name], made, functools.partial(_only_reads, graphs)
        )


def invariant(body: ir.Graph) -> Iterator[int]:
    """The arguments of a loop's body that it hands on as they are."""
    for index, (arg, result) in enumerate(zip(body.args, body.results, strict=True)):
        if result.edge == (arg.name, 0):
            yield index


def _named(body: ir.Graph) -> ir.Graph:
    """The body with invariant results named as their arguments."""
    results = []
    for arg, result in zip(body.args, body.results, strict=True):
        edge = result.edge
        while edge[0] in body.nodes and _hands_on(body.nodes[edge[0]]):
            edge = body.nodes[edge[0]].inputs[0]
        same = edge == (arg.name, 0)
        results.append(dataclasses.replace(result, edge=edge) if same else result)
    return _without_dead(body.with_nodes(body.nodes, tuple(results)), body)


def _hands_on(node: ir.Node) -> bool:
    return facts(node.op).kind is Kind.IDENTITY


def _without_dead(graph: ir.Graph, before: ir.Graph) -> ir.Graph:
    """Without the Identities that only gave the results `before` their names."""
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
            loose += [s for s in sources if s in nodes and _hands_on(nodes[s])]
    return graph.with_nodes(nodes) if len(nodes) < len(graph.nodes) else graph


def _read_before(caller: ir.Graph, loop: str, body: ir.Graph) -> ir.Graph:
    """The caller with invariant float32 results of a loop read where they come from."""
    inputs = caller.nodes[loop].inputs
    same = {
        (loop, index): inputs[index]
        for index in invariant(body)
        if body.args[index].type == ir.FLOAT
    }
    return redirected(caller, same)


def _hoist(
    graphs: dict[str, ir.Graph], name: str, loop: tuple[str, Call, str, str]
) -> None:
    """Reads before a loop what it only reads (2. of `hoist_invariants`)."""
    at, call, cond, body = loop
    found = list(_reads(graphs, cond, body))
    if not found:
        return
    nodes = dict(graphs[name].nodes)
    node = nodes[at]
    added, ports, moved = [], [], {}
    for number, (index, read) in enumerate(found):
        made = f"{at}/amp_read_{number}"
        while made in nodes:  # of an outer loop's
            made += "_"
        source = graphs[body].nodes[read]
        shape = graphs[body].shape((read, 0))
        nodes[made] = dataclasses.replace(
            source,
            name=made,
            inputs=(node.inputs[index],),
            controls=node.controls,
            device=node.device or source.device,
            pristine=False,
        )
        added.append(((made, 0), ir.FLOAT, shape))
        port = f"amp_{made.replace('/', '_')}".lower()
        ports.append((ir.Argument(port, ir.FLOAT), shape))
        moved[read, 0] = (port, 0)
    origin = {edge: shape for edge, _, shape in added}
    nodes[at] = calls.extended(node, call, added)
    graphs[name] = _shaped(graphs[name].with_nodes(nodes), origin)
    graphs[body] = redirected(widened(graphs[body], ports, results=True), moved)
    graphs[cond] = widened(graphs[cond], ports, results=False)


def _reads(
    graphs: dict[str, ir.Graph], cond: str, body: str
) -> Iterator[tuple[int, str]]:
    """(argument index, node) of a body's float32 reads of what the loop only reads."""
    inside = graphs[body]
    for index in invariant(inside):
        arg = inside.args[index]
        if arg.type != ir.RESOURCE or not _only_read(graphs, body, index):
            continue
        if not _only_read(graphs, cond, index):
            continue
        for name, _ in inside.readers.get((arg.name, 0), ()):
            node = inside.nodes[name]
            if reads_float32(node) and inside.readers.get((name, 0)):
                yield index, name


def _only_read(graphs: Mapping[str, ir.Graph], name: str, index: int) -> bool:
    """Whether a function, and what it calls, only reads the variable of an argument."""
    graph = graphs[name]
    readers = graph.readers.get((graph.args[index].name, 0), ())
    return all(_only_reads(graphs, graph.nodes[r], at) for r, at in readers)


def _only_reads(graphs: Mapping[str, ir.Graph], node: ir.Node, at: int) -> bool:
    """Whether a node only reads the variable whose handle is its input `at`."""
    if facts(node.op).only_reads:
        return True
    call = calls.CALLS.get(node.op)
    if call is None or at < call.skip:
        return False
    return all(
        callee in graphs
        and at - call.skip < len(graphs[callee].args)
        and _only_read(graphs, callee, at - call.skip)
        for callee in calls.callees_of(node, call)
    )


def widened(
    graph: ir.Graph, ports: list[tuple[ir.Argument, ir.Shape]], results: bool
) -> ir.Graph:
    """A function with more arguments, which it gives back as results if asked to."""
    args = tuple(arg for arg, _ in ports)
    passed = tuple(ir.Result(f"{a.name}_out", a.type, (a.name, 0)) for a in args)
    wider = dataclasses.replace(
        graph,
        args=graph.args + args,
        results=graph.results + passed if results else graph.results,
    )
    return _shaped(wider, {(arg.name, 0): shape for arg, shape in ports})


def _shaped(graph: ir.Graph, known: dict[ir.Edge, ir.Shape]) -> ir.Graph:
    before = graph.shape

    def shape(edge: ir.Edge) -> ir.Shape:
        return known[edge] if edge in known else before(edge)

    return dataclasses.replace(graph, shape=shape)
