"""The gradients of a training step, and what they are computed from.

They are what the unscale markers read: in the step itself, in a function that XLA
compiles, which is not inlined, or in a loop or branch (`inner_steps`). What of it
cannot be computed twice is told; copies are made in `copies`, not here.
"""

from __future__ import annotations

from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.normalize.inner_steps import (
    Way,
    argument_of_main,
    graphs_on,
    is_marked,
    runs_once,
    ways,
)
from amp.graph_rewrite.normalize.wanted import (
    NotRepeatable,
    Read,
    Wanted,
    holder,
    inside,
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
    return inside(module, way, wanted, found) if way else wanted


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
