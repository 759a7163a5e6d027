"""Merges reads of a variable that give the same value, so that it is cast only once.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.ops.op_table import Kind, facts


def shared(
    graph: ir.Graph,
    stands_for: Mapping[str, str],
    only_reads: Callable[[ir.Node, int], bool],
    python: Collection[str],
) -> ir.Graph:
    """Merges the reads of each float32 variable that precede its first write::

        for each variable handle that several nodes read:
          writers = nodes that take the handle and may write
          same = reads on one device that every writer waits for, before and after the
                 same Python
          readers of same[1:] read same[0] instead

    TensorFlow's automatic control dependencies make a write wait for every read before
    it. A read that some writer does not wait for may run after it and stays. Python
    takes no handle and may write every variable. A read is not always free: a variable
    of which rows are written is copied. So none runs that did not before: of reads that
    only writers wait for, TensorFlow prunes those that are no control results.

    Args:
      graph: a function.
      stands_for: for a read that was hoisted out of a loop, the loop: writers that wait
        for the loop wait for the read.
      only_reads: whether a node only reads the variable whose handle is at an input.
      python: the nodes that run Python.
    """
    reads: dict[ir.Edge, list[str]] = defaultdict(list)
    for name, node in graph.nodes.items():
        if reads_float32(node):
            reads[node.inputs[0]].append(name)
    several = {handle: names for handle, names in reads.items() if len(names) > 1}
    if not several:
        return graph
    writers: dict[ir.Edge, list[ir.Node]] = {handle: [] for handle in several}
    for node in graph.nodes.values():
        for index, edge in enumerate(node.inputs):
            if edge in writers and not only_reads(node, index):
                writers[edge].append(node)
    around = python_calls.around(graph, python, itertools.chain(*several.values()))
    same: dict[ir.Edge, ir.Edge] = {}
    for handle, names in several.items():
        ordered = _in_order(names, handle, graph)
        firsts: dict[tuple[tuple[int, int], str], str] = {}
        for name in _waited(ordered, writers[handle], stands_for):
            # One handle may stand for a variable on each of several devices.
            place = around[name], graph.nodes[name].device
            first = firsts.setdefault(place, name)
            if first != name:
                same[name, 0] = (first, 0)
    return redirected(graph, same) if same else graph


def _in_order(names: Sequence[str], handle: ir.Edge, graph: ir.Graph) -> Sequence[str]:
    """Reads of a variable, of which none depends on a later one.

    If the handle is an argument, those come first that wait for nothing, and of them
    those that run in any case; so the order of all nodes is mostly not needed.
    """
    waiting = {name for name in names if graph.nodes[name].controls}
    if handle[0] in graph.nodes:
        waiting |= set(names)
    ends = frozenset(graph.control_results)
    free = [name for name in names if name not in waiting]
    free.sort(key=lambda name: name not in ends)
    if len(waiting) < 2:
        return [*free, *waiting]
    return [*free, *(name for name in graph.order if name in waiting)]


def reads_float32(node: ir.Node) -> bool:
    """Whether a node reads the value of a float32 variable."""
    reads = facts(node.op).kind is Kind.READ_VARIABLE
    return reads and node.types("dtype") == (ir.FLOAT,)


def only_read(graphs: Mapping[str, ir.Graph], name: str, index: int) -> bool:
    """Whether a function, callees included, only reads the variable in an argument."""
    graph = graphs[name]
    readers = graph.readers.get((graph.args[index].name, 0), ())
    return all(only_reads(graphs, graph.nodes[r], at) for r, at in readers)


def only_reads(graphs: Mapping[str, ir.Graph], node: ir.Node, at: int) -> bool:
    """Whether a node only reads the variable whose handle is its input `at`."""
    if facts(node.op).only_reads:
        return True
    call = calls.CALLS.get(node.op)
    if call is None or call.each or at < call.skip:
        return (
            False  # the inputs of a loop over a dataset are others than its function's
        )
    return all(
        callee in graphs
        and at - call.skip < len(graphs[callee].args)
        and only_read(graphs, callee, at - call.skip)
        for callee in calls.callees_of(node, call)
    )


def _waited(
    names: Sequence[str], writers: Collection[ir.Node], stands_for: Mapping[str, str]
) -> list[str]:
    """The reads (of `names`) that every writer waits for."""
    waited = [{writer.name, *writer.controls} for writer in writers]
    either = ((name, stands_for.get(name, name)) for name in names)
    return [pair[0] for pair in either if not any(map(set(pair).isdisjoint, waited))]


def redirected(graph: ir.Graph, same: Mapping[ir.Edge, ir.Edge]) -> ir.Graph:
    """The graph in which readers of each edge in `same` read the edge it maps to."""
    results = tuple(
        ir.Result(r.name, r.type, same.get(r.edge, r.edge)) for r in graph.results
    )
    read, nodes = same.keys(), dict(graph.nodes)
    for name, node in graph.nodes.items():
        if not read.isdisjoint(node.inputs):
            nodes[name] = node.changed(tuple(same.get(e, e) for e in node.inputs))
    changed = results != graph.results or nodes != graph.nodes
    return graph.with_nodes(nodes, results) if changed else graph
