"""Looks rows up in a variable, where it was copied as a whole for that.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping

from amp.graph_rewrite.graph import calls, ir, shapes
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.normalize.variable_reads import only_reads, reads_float32
from amp.graph_rewrite.ops.op_table import Kind, facts

_MARKS = (ir.KEEP, ir.UNSCALE, ir.SEED, "_class")


def read_rows(module: ir.Module, differentiable: bool) -> ir.Module:
    """Makes one node of a read and the lookup that alone reads it::

        y = GatherV2(ReadVariableOp(v), ids, axis=0)    ->    y = ResourceGather(v, ids)

    That is done where the function writes rows of the variable. From the first write of
    rows on TensorFlow copies the variable whenever all of it is read; a ResourceGather
    has the same effect on later reads, so elsewhere it would cost what it saves here
    (`copy_on_read_mode`, tensorflow/core/framework/resource_var.h). Keras looks an
    embedding up so, and its optimizers write the rows of a sparse gradient.

    The new node has the read's name: whatever waited for the read waits for the lookup,
    and every writer does. An Identity has the lookup's.

    Args:
      module: the module, calls inlined.
      differentiable: whether gradients may be taken of the result; all stays then.
    """
    if differentiable:
        return module
    graphs = {graph.name: graph for graph in module.graphs()}
    reads = functools.partial(only_reads, graphs)
    rows_written, python = _RowWrites(graphs), python_calls.running(module)

    def narrowed(graph: ir.Graph) -> ir.Graph:
        # In a GraphDef, a session may run reads and writes in any order. Python may
        # write every variable, and waits for no read of one.
        apart = not graph.name or python_calls.nodes(graph, python)
        return graph if apart else _narrowed(graph, rows_written, reads)

    functions = {name: narrowed(graph) for name, graph in module.functions.items()}
    return ir.Module(narrowed(module.main), functions)


def _narrowed(
    graph: ir.Graph, rows_written: _RowWrites, reads: Callable[[ir.Node, int], bool]
) -> ir.Graph:
    if "GatherV2" not in graph.ops:
        return graph
    pairs = [
        pair
        for handle in sorted(rows_written.of(graph))
        for pair in _lookups(graph, handle)
        if _may_be_late(graph, pair, reads)
    ]
    if not pairs:
        return graph
    nodes = dict(graph.nodes)
    rows: dict[ir.Edge, ir.Edge] = {}
    for read, lookup in pairs:
        copied = shapes.elements(graph.shape((read.name, 0)))
        nodes[read.name] = _row_read(read, lookup, copied)
        updates = {"T": ir.Type(ir.FLOAT)}
        nodes[lookup.name] = ir.Node(
            lookup.name, "Identity", ((read.name, 0),), (), lookup.device, None, updates
        )
        rows[read.name, 0] = (lookup.name, 0)

    def shaped(before: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: before(rows.get(edge, edge))

    return graph.with_nodes(nodes).with_shapes(shaped)


class _RowWrites:
    """Which variables a function writes rows of, itself or in functions that it calls.

    Args:
      graphs: all functions, by name.
    """

    def __init__(self, graphs: Mapping[str, ir.Graph]) -> None:
        self._graphs = graphs
        self._known: dict[str, frozenset[ir.Edge]] = {}

    def of(self, graph: ir.Graph) -> frozenset[ir.Edge]:
        """The handles of these variables."""
        if graph.name not in self._known:
            self._known[graph.name] = frozenset()  # where a function calls itself
            self._known[graph.name] = frozenset(self._found(graph))
        return self._known[graph.name]

    def _found(self, graph: ir.Graph) -> Iterator[ir.Edge]:
        for node in graph.nodes.values():
            row = facts(node.op)
            if row.kind is Kind.WRITE and row.work == "scatter":
                yield node.inputs[0]
        for node, call in calls.calls(graph, self._graphs):
            for name in () if call.each else calls.callees_of(node, call):
                callee = self._graphs[name]
                written = self.of(callee)
                passed = zip(node.inputs[call.skip :], callee.args, strict=False)
                yield from (edge for edge, arg in passed if (arg.name, 0) in written)


def _lookups(graph: ir.Graph, handle: ir.Edge) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Each read of a variable that only a lookup of rows reads, with the lookup."""
    returned = {result.edge for result in graph.results}
    for name, _ in graph.readers.get(handle, ()):
        read = graph.nodes[name]
        readers = graph.readers.get((name, 0), ())
        if not reads_float32(read) or (name, 0) in returned or len(readers) != 1:
            continue
        ((reader, index),) = readers
        lookup = graph.nodes[reader]
        same_device = read.device == lookup.device
        marked = any(node.has(mark) for node in (read, lookup) for mark in _MARKS)
        if index == 0 and same_device and not marked and _of_rows(graph, lookup):
            yield read, lookup


def _of_rows(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether a node looks up rows: entries of the first dimension, for each index."""
    if node.op != "GatherV2" or node.integer("batch_dims", 0):
        return False
    axis = graph.nodes.get(node.inputs[2][0])
    constant = axis is not None and facts(axis.op).kind is Kind.CONSTANT
    return constant and axis is not None and not axis.tensor().any()


def _may_be_late(
    graph: ir.Graph,
    pair: tuple[ir.Node, ir.Node],
    reads: Callable[[ir.Node, int], bool],
) -> bool:
    """Whether a read may wait for the indices, and all that writes waits for it.

    So it may if no index depends on the read.
    """
    read, lookup = pair
    for name, index in graph.readers.get(read.inputs[0], ()):
        node = graph.nodes[name]
        if reads(node, index) or read.name in node.controls:
            continue
        if read.name not in _ancestors(graph, [name]):
            return False
    return read.name not in _ancestors(graph, [lookup.inputs[1][0], *lookup.controls])


def _ancestors(graph: ir.Graph, names: Collection[str]) -> set[str]:
    """These nodes, and all that they depend on."""
    found, pending = set(names), list(names)
    while pending:
        node = graph.nodes.get(pending.pop())
        if node is None:
            continue
        fresh = {*(source for source, _ in node.inputs), *node.controls} - found
        found |= fresh
        pending += fresh
    return found


def _row_read(read: ir.Node, lookup: ir.Node, copied: int) -> ir.Node:
    """The lookup as one node, in the place of the read.

    Args:
      read, lookup: the nodes.
      copied: the variable's elements, which need not be copied now.
    """
    (index_type,) = lookup.types("Tindices")
    types = {"dtype": ir.Type(ir.FLOAT), "Tindices": ir.Type(index_type)}
    return ir.Node(
        read.name,
        "ResourceGather",
        (read.inputs[0], lookup.inputs[1]),
        tuple(dict.fromkeys((*read.controls, *lookup.controls))),
        read.device,
        None,
        {**types, ir.COPIED: copied},
    )
