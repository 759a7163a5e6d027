"""Looks rows up in a variable, where it was copied as a whole for that.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.normalize.variable_reads import only_reads, reads_float32
from amp.graph_rewrite.ops import structure
from amp.graph_rewrite.ops.op_table import Kind, facts

_MARKS = (ir.KEEP, ir.UNSCALE, ir.SEED, "_class")
_ROWS_OF_TENSOR = structure.LOOKUPS[structure.ROWS]
_INDICES = (ir.INT32, ir.INT64)  # that a ResourceGather takes


class _Lookup(NamedTuple):
    """A read of a variable, and the lookup of rows that alone reads it."""

    read: ir.Node
    rows: ir.Node


def read_rows(module: ir.Module, differentiable: bool) -> ir.Module:
    """Makes one node of a read and the lookup that alone reads it::

        y = GatherV2(ReadVariableOp(v), ids, axis=0)    ->    y = ResourceGather(v, ids)

    That is done where the same function writes rows of the variable, in no branch or
    loop. From the first write of rows on TensorFlow copies the variable whenever all of
    it is read; a ResourceGather has the same effect on later reads, so elsewhere it
    would cost what it saves here (`copy_on_read_mode`,
    tensorflow/core/framework/resource_var.h). Keras looks an embedding up so, and its
    optimizers write the rows of a sparse gradient.

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
    python = python_calls.running(module)

    def narrowed(graph: ir.Graph) -> ir.Graph:
        # In a GraphDef, a session may run reads and writes in any order. Python may
        # write every variable, and waits for no read of one.
        apart = not graph.name or python_calls.nodes(graph, python)
        return graph if apart else _narrowed(graph, reads)

    functions = {name: narrowed(graph) for name, graph in module.functions.items()}
    return ir.Module(narrowed(module.main), functions)


def _narrowed(graph: ir.Graph, reads: Callable[[ir.Node, int], bool]) -> ir.Graph:
    if _ROWS_OF_TENSOR not in graph.ops:
        return graph
    handles = dict.fromkeys(
        node.inputs[0] for node in graph.nodes.values() if facts(node.op).writes_rows
    )
    found = [one for handle in handles for one in _lookups(graph, handle)]
    found = _that_may_be_late(graph, found, reads) if found else []
    if not found:
        return graph
    nodes = dict(graph.nodes)
    for read, rows in found:
        copied = shapes.elements(graph.shape((read.name, 0)))
        nodes[read.name] = _row_read(read, rows, copied)
        updates = {"T": ir.Type(ir.FLOAT)}
        edge = read.name, 0
        nodes[rows.name] = ir.Node(
            rows.name, "Identity", (edge,), (), rows.device, None, updates
        )
    same = {(read.name, 0): (rows.name, 0) for read, rows in found}

    def shaped(before: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: before(same.get(edge, edge))

    made = graph.with_nodes(nodes).with_shapes(shaped)
    # Each may wait for its indices, but together they may wait for one another.
    return made if len(made.order) == len(graph.order) else graph


def _lookups(graph: ir.Graph, handle: ir.Edge) -> Iterator[_Lookup]:
    """The lookups in a variable that are the only reader of a read of it."""
    returned = {result.edge for result in graph.results}
    for name, _ in graph.readers.get(handle, ()):
        read = graph.nodes[name]
        readers = graph.readers.get((name, 0), ())
        if not reads_float32(read) or (name, 0) in returned or len(readers) != 1:
            continue
        ((reader, index),) = readers
        rows = graph.nodes[reader]
        marked = any(node.has(mark) for node in (read, rows) for mark in _MARKS)
        alike = read.device == rows.device and not marked
        if index == 0 and alike and _of_rows(graph, rows):
            yield _Lookup(read, rows)


def _of_rows(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether a node looks up rows: entries of the first dimension, for each index."""
    if node.op != _ROWS_OF_TENSOR or node.integer("batch_dims", 0):
        return False
    if node.types("Tindices")[0] not in _INDICES:
        return False
    axis = graph.nodes.get(node.inputs[2][0])
    if axis is None or facts(axis.op).kind is not Kind.CONSTANT:
        return False
    return not axis.tensor().any()


def _that_may_be_late(
    graph: ir.Graph,
    found: Sequence[_Lookup],
    reads: Callable[[ir.Node, int], bool],
) -> list[_Lookup]:
    """The lookups whose read may wait for the indices.

    No index depends on the read, every node that may write the variable waits for it,
    and the lookup runs in any case: so does the read, but what nothing needs is pruned.
    """
    own = {one.read.name: 1 << place for place, one in enumerate(found)}
    after: dict[str, int] = {}  # of each node, the reads that it waits for, as bits
    for name in graph.order:
        bits = own.get(name, 0)
        for source in graph.nodes[name].sources:
            bits |= after.get(source, 0)
        after[name] = bits
    needed = _needed(graph)

    def may(one: _Lookup) -> bool:
        bit = own[one.read.name]
        takers = graph.readers[one.read.inputs[0]]
        writers = (name for name, at in takers if not reads(graph.nodes[name], at))
        waits = (one.rows.inputs[1][0], *one.rows.controls)
        return (
            one.rows.name in needed
            and all(after[name] & bit for name in writers)
            and not any(after.get(name, 0) & bit for name in waits)
        )

    return [one for one in found if may(one)]


def _needed(graph: ir.Graph) -> set[str]:
    """The nodes on which a result of the function depends, or one that runs anyway."""
    results = (result.edge[0] for result in graph.results)
    return graph.needed_for((*results, *graph.control_results))


def _row_read(read: ir.Node, rows: ir.Node, copied: int) -> ir.Node:
    """The lookup as one node, in the place of the read.

    Args:
      read, rows: the read and the lookup.
      copied: the variable's elements, which need not be copied now.
    """
    types = {"dtype": ir.Type(ir.FLOAT), "Tindices": ir.Type(rows.types("Tindices")[0])}
    return ir.Node(
        read.name,
        structure.ROWS,
        (read.inputs[0], rows.inputs[1]),
        tuple(dict.fromkeys((*read.controls, *rows.controls))),
        read.device,
        None,
        {**types, ir.COPIED: copied},
    )
