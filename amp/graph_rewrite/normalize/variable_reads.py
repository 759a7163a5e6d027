"""One read of a variable where several would give the same value.

Structure only, as in `loops`: what is read once is cast once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Kind, facts


def shared(
    graph: ir.Graph,
    stands_for: Mapping[str, str],
    only_reads: Callable[[ir.Node, int], bool],
) -> ir.Graph:
    """The graph with every float32 variable read once before it is first written::

        for each handle: its reads; its writers (whatever takes it and may write)
          those reads that every writer waits for read the same: readers of one after
          the first read the first

    TensorFlow's automatic control dependencies make a write wait for every read before
    it. A read that some writer does not wait for may come after it and is left alone.

    Args:
      graph: a function.
      stands_for: by a read that was made before a loop, the loop that writers wait for.
      only_reads: whether a node only reads the variable at an input.
    """
    reads: dict[ir.Edge, list[str]] = defaultdict(list)
    writers: dict[ir.Edge, list[ir.Node]] = defaultdict(list)
    for name in graph.order:
        node = graph.nodes[name]
        if reads_float32(node):
            reads[node.inputs[0]].append(name)
    for handle in reads:
        for name, index in graph.readers.get(handle, ()):
            node = graph.nodes[name]
            if not only_reads(node, index):
                writers[handle].append(node)
    same: dict[ir.Edge, ir.Edge] = {}
    for handle, names in reads.items():
        waited = _waited(names, writers.get(handle, ()), stands_for)
        same |= {(name, 0): (waited[0], 0) for name in waited[1:]}
    return redirected(graph, same) if same else graph


def reads_float32(node: ir.Node) -> bool:
    """Whether a node gives the value of a float32 variable."""
    reads = facts(node.op).kind is Kind.READ_VARIABLE
    return reads and node.types("dtype") == (ir.FLOAT,)


def _waited(
    names: Sequence[str], writers: Collection[ir.Node], stands_for: Mapping[str, str]
) -> list[str]:
    """The reads that every writer waits for; a loop waits for those made before it."""

    def waits(writer: ir.Node, name: str) -> bool:
        loop = stands_for.get(name, name)
        return writer.name == loop or bool({name, loop} & set(writer.controls))

    return [name for name in names if all(waits(w, name) for w in writers)]


def redirected(graph: ir.Graph, same: Mapping[ir.Edge, ir.Edge]) -> ir.Graph:
    """The graph with what reads an edge of `same` reading the other instead."""
    nodes = dict(graph.nodes)
    results = tuple(
        ir.Result(r.name, r.type, same.get(r.edge, r.edge)) for r in graph.results
    )
    changed = results != graph.results
    for edge in same:
        for name, _ in graph.readers.get(edge, ()):
            inputs = tuple(same.get(e, e) for e in nodes[name].inputs)
            nodes[name] = nodes[name].changed(inputs)
            changed = True
    return graph.with_nodes(nodes, results) if changed else graph
