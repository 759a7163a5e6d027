"""The gradients of a training step, and what they are computed from.

They are what the unscale markers read: in the step itself, in a function that XLA
compiles, which is not inlined, or in a loop or branch (`inner_steps`). What of it
cannot be computed twice is told; copies are made in `copies`, not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator

from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.normalize.inner_steps import (
    Way,
    argument_of_main,
    graphs_on,
    is_compiled,
    is_marked,
    runs_once,
    ways,
)
from amp.graph_rewrite.normalize.wanted import (
    NotRepeatable,
    Read,
    Wanted,
    holder,
    taken_by,
    takes_from_elsewhere,
)
from amp.graph_rewrite.ops.op_table import Kind, facts


def is_step(module: ir.Module) -> bool:
    """Whether a function takes one training step: it unscales gradients, in no loop.

    Args:
      module: the function with its calls inlined.
    """
    return is_marked(module.main)


def is_within(module: ir.Module) -> bool:
    """Whether steps are taken in a loop or branch of it."""
    found = ways(module)
    return bool(found) and not any(not w or runs_once(module, w) for w in found)


def gradients(module: ir.Module) -> Wanted:
    """Finds the gradients of a training step.

    Args:
      module: the step in float32, with its calls inlined.

    Raises:
      NotRepeatable: it has none, or they depend on what can neither be repeated nor be
        recorded.
    """
    way = _way(module)
    graph = graphs_on(module, way)[-1]
    lookup = op_schema.lookup_of(module)
    first: dict[ir.Edge, str] = {}  # by gradient, one of the markers that read it
    for node in graph.nodes.values():
        if node.flag(ir.UNSCALE) and _type(node, 0, lookup) == ir.FLOAT:
            first.setdefault(node.inputs[0], node.name)
    if not first:
        raise NotRepeatable("it has no gradients of variables")
    found, taken = taken_by(module, graph, first)
    behind = graph.computed_from(edge for edge, _ in taken)
    # The gradient of a `tf.py_function`: what is recorded is of one loss scale.
    if any(node.flag(ir.SEED) for name, node in graph.nodes.items() if name in behind):
        raise NotRepeatable(f"node {taken[-1][0][0]} cannot run twice")
    nodes = (node for name, node in graph.nodes.items() if name in found)
    seeds = [node for node in nodes if node.flag(ir.SEED)]
    wanted = Wanted(
        reads=tuple(Read(marker, 0) for marker in first.values()),
        names=tuple(name for name, _ in first),
        labels=tuple(graph.nodes[name].text(ir.SOURCE) for name in first.values()),
        gradients=True,
        taken=tuple(taken),
        stood_for=tuple(edge for edge, _ in taken),
        scaled=bool(seeds) and all(_type(n, 1, lookup) == ir.FLOAT for n in seeds),
    )
    return _inside(module, way, wanted, found) if way else wanted


def _inside(
    module: ir.Module, way: Way, wanted: Wanted, needed: Container[str]
) -> Wanted:
    """The gradients of a step that another graph than the main one takes.

    Args:
      module: the step.
      way: to that graph.
      wanted: what is known of them in it.
      needed: the names of its arguments and nodes that they are computed from.

    Raises:
      NotRepeatable: what they depend on can neither be recorded nor be called with.
    """
    graph, call = graphs_on(module, way)[-1], _last_call(module, way)
    called = calls.calls_once(call.op)  # so XLA compiles it, and nothing is kept in it
    if called and wanted.taken:
        raise NotRepeatable(f"node {wanted.taken[0][0][0]} cannot run twice")
    kept = None if runs_once(module, way) else way[:-1] if called else way
    if kept is not None and is_compiled(module, kept):
        raise NotRepeatable("its steps are in a loop or branch that XLA compiles")
    given = list(_given(module, way, needed, every=kept is None))
    own = [number for number, main in given if main is None]
    args = [(graph.args[number].name, 0) for number in own]
    types = [graph.args[number].type for number in own]
    edges = [call.inputs[number] for number in own] if called else args
    return dataclasses.replace(
        wanted,
        taken=(*wanted.taken, *zip(edges, types, strict=True)),
        stood_for=(*wanted.stood_for, *args),
        way=way,
        passed=tuple((number, main) for number, main in given if main is not None),
        kept=kept,
    )


def _way(module: ir.Module) -> Way:
    """The way to the graph with the unscale markers.

    Raises:
      NotRepeatable: there are several.
    """
    found = ways(module)
    if len(found) > 1:
        names = sorted({graphs_on(module, way)[-1].name for way in found})
        where = f"in function {names[0]}, not in it, and in another call"
        raise NotRepeatable(f"its gradients are computed {where}")
    return found[0] if found else ()


def _last_call(module: ir.Module, way: Way) -> ir.Node:
    return graphs_on(module, way[:-1])[-1].nodes[way[-1].node]


def _given(
    module: ir.Module, way: Way, needed: Container[str], *, every: bool
) -> Iterator[tuple[int, int | None]]:
    """The arguments of the last graph that are needed, with those of the main graph.

    Args:
      module: the step.
      way: to the graph.
      needed: the names of its arguments and nodes that gradients are computed from.
      every: whether all are recorded, as results of the main graph.

    Raises:
      NotRepeatable: one can neither be recorded nor be called with.
    """
    for number, arg in enumerate(graphs_on(module, way)[-1].args):
        if every:
            yield number, None
        elif arg.name in needed:
            main = None
            if arg.type == ir.RESOURCE:
                main = argument_of_main(module, way, number)
                if main is None:
                    raise NotRepeatable(f"argument {arg.name} is made inside")
            yield number, main


def weights(module: ir.Module, wanted: Wanted) -> tuple[int, ...]:
    """The numbers of the step's arguments that hold what its gradients depend on.

    Neither of the loss scale nor of counters, which functions may share that have no
    weights in common.
    """
    graph = holder(module, wanted)
    seeds = [node for node in graph.nodes.values() if node.flag(ir.SEED)]
    edges = [(name, 0) for name in wanted.names] + [seed.inputs[0] for seed in seeds]
    found = graph.computed_from(
        edges,
        lambda node: not node.flag(ir.SEED) and not takes_from_elsewhere(node, module),
    )
    held = [
        argument_of_main(module, wanted.way, number)
        for number, arg in enumerate(graph.args)
        if arg.type == ir.RESOURCE
        and arg.name in found
        and not _is_counter(graph, (arg.name, 0))
    ]
    return tuple(number for number in held if number is not None)


def _is_counter(graph: ir.Graph, handle: ir.Edge) -> bool:
    """Whether a variable is read as integers, or as truth values."""
    readers = (graph.nodes[name] for name, _ in graph.readers.get(handle, ()))
    reads = (node for node in readers if facts(node.op).kind is Kind.READ_VARIABLE)
    return any(node.types("dtype")[0] in (*ir.INTEGERS, ir.BOOL) for node in reads)


def _type(node: ir.Node, index: int, lookup: op_schema.Lookup) -> int:
    known = lookup(node.op)
    ins = () if known is None else known.signature(node).ins
    return ins[index].type if index < len(ins) else 0
