"""Moves reads of variables that a loop of TensorFlow 1 only reads before the loop.

As `loop_invariants` does for loops that are functions. Changes structure only: no
types, no cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.frames import Frame, frames
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.normalize.variable_reads import reads_float32, redirected
from amp.graph_rewrite.ops.op_table import Kind, facts


def hoist_frame_reads(module: ir.Module) -> ir.Module:
    """Reads each float32 variable that a loop only reads once, before the loop::

        enter(v); while ...: y = f(read(v))  ->  enter(read(v)); while ...: y = f(v)

    The new read waits for all that the beginning of a trip waited for outside of the
    loop. A read that waits for more than that stays where it is, and so does every read
    if a loop runs Python, which may write every variable. Out of nested loops a read is
    moved as far as possible.
    """
    python = python_calls.running(module)
    functions = {name: _hoisted(g, python) for name, g in module.functions.items()}
    return ir.Module(_hoisted(module.main, python), functions)


def _hoisted(graph: ir.Graph, python: frozenset[str]) -> ir.Graph:
    if not _all_outside(python_calls.nodes(graph, python), graph):
        return graph
    while (moved := _moved(graph)) is not graph:
        graph = moved
    return graph


def _all_outside(names: Collection[str], graph: ir.Graph) -> bool:
    """Whether none of these nodes is in a loop."""
    return not names or frames(graph).keys().isdisjoint(names)


def _moved(graph: ir.Graph) -> ir.Graph:
    """The graph with each read that may move one loop further out."""
    within = frames(graph)
    nodes, moved = dict(graph.nodes), {}
    shapes: dict[ir.Edge, ir.Shape] = {}
    for name in within:
        node = graph.nodes[name]
        if reads_float32(node) and _may_move(graph, within, node):
            read, enter = _before(graph, within, node)
            nodes |= {read.name: read, enter.name: enter}
            moved[name, 0] = (enter.name, 0)
            shapes |= dict.fromkeys(
                ((read.name, 0), (enter.name, 0)), graph.shape((name, 0))
            )
    return redirected(_with(graph, nodes, shapes), moved) if moved else graph


def _may_move(graph: ir.Graph, within: Mapping[str, Frame], read: ir.Node) -> bool:
    """Whether a read in a loop gives the same value as one before it.

    No loop may write the variable, and the read must wait only for its trip to begin.
    """
    handle = graph.nodes.get(read.inputs[0][0])
    if handle is None or facts(handle.op).kind is not Kind.ENTER:
        return False
    if not handle.flag("is_constant") or not graph.readers.get((read.name, 0)):
        return False
    if not all(_begins_trip(graph, name) for name in read.controls):
        return False
    readers = _readers(graph, handle.inputs[0], within)
    return all(facts(node.op).only_reads for node in readers)


def _begins_trip(graph: ir.Graph, name: str) -> bool:
    """Whether a node waits for no more than that a trip has begun.

    It is a constant in the loop, or a copy of what a Switch of the loop hands on.
    """
    node = graph.nodes[name]
    if facts(node.op).kind is Kind.CONSTANT and node.controls:
        return all(_begins_trip(graph, waits) for waits in node.controls)
    if facts(node.op).kind is not Kind.IDENTITY or node.controls:
        return False
    switch = graph.nodes.get(node.inputs[0][0])
    if switch is None or facts(switch.op).kind is not Kind.SWITCH:
        return False
    by = graph.nodes.get(switch.inputs[1][0])
    return by is not None and facts(by.op).kind is Kind.LOOP_CONDITION


def _readers(
    graph: ir.Graph, handle: ir.Edge, within: Mapping[str, Frame]
) -> Iterator[ir.Node]:
    """The nodes in loops that take the variable behind a handle."""
    pending, seen = [handle], {handle}
    while pending:
        for name, _ in graph.readers.get(pending.pop(), ()):
            node = graph.nodes[name]
            if facts(node.op).in_frames or facts(node.op).kind is Kind.IDENTITY:
                onward = {(name, 0), (name, 1)} - seen
                pending += onward
                seen |= onward
            elif name in within:
                yield node


def _before(
    graph: ir.Graph, within: Mapping[str, Frame], node: ir.Node
) -> tuple[ir.Node, ir.Node]:
    """A read before the loop that a read is in, and the Enter of its value."""
    handle = graph.nodes[node.inputs[0][0]]
    source = handle.inputs[0]
    waits = dict.fromkeys((*handle.controls, *_waits(graph, within, node)))
    read = dataclasses.replace(
        node,
        name=_free(graph, f"{node.name}/amp_read"),
        inputs=(source,),
        controls=tuple(name for name in waits if name != source[0]),
        pristine=False,
    )
    enter = dataclasses.replace(
        handle.changed(((read.name, 0),), {"T": ir.Type(ir.FLOAT)}),
        name=_free(graph, f"{node.name}/amp_enter"),
        controls=(),
    )
    return read, enter


def _waits(
    graph: ir.Graph, within: Mapping[str, Frame], node: ir.Node
) -> Iterator[str]:
    """What has run outside of a loop before the control inputs of a node in it run."""
    pending, seen = list(node.controls), set(node.controls)
    while pending:
        at = graph.nodes[pending.pop()]
        sources = [*(edge[0] for edge in at.inputs), *at.controls]
        entering = facts(at.op).kind is Kind.ENTER
        if entering and within[at.name] == within[node.name]:
            yield from sources
            continue
        onward = {name for name in sources if name in within} - seen
        pending += onward
        seen |= onward


def _with(
    graph: ir.Graph, nodes: Mapping[str, ir.Node], known: Mapping[ir.Edge, ir.Shape]
) -> ir.Graph:
    """The graph with other nodes, and with the shapes of the new ones."""

    def changed(before: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: known[edge] if edge in known else before(edge)

    return dataclasses.replace(graph.with_shapes(changed), nodes=nodes)


def _free(graph: ir.Graph, name: str) -> str:
    while name in graph.nodes:
        name += "_"
    return name
