"""Training steps that a function takes inside: in a loop, a branch or another call.

Where they are, and how to keep what one trip of a loop is given: a node in it writes
that to a variable of TensorFlow's runtime, known by its name alone, so that nothing
that calls it has to hand anything on. What is kept, and why, is `copies`'s to
say; nothing is run here and no precision is chosen.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from amp.graph_rewrite.graph import calls, generators, ir
from amp.graph_rewrite.graph.calls import Call
from amp.graph_rewrite.normalize.loop_invariants import invariant
from amp.graph_rewrite.ops.op_table import Kind, facts

_KEPT = "amp_check_kept"


class Turn(NamedTuple):
    """One call on the way to a step.

    Attributes:
      node: the name of the calling node.
      callee: which of the functions that it names.
    """

    node: str
    callee: int


Way = tuple[Turn, ...]  # from the main graph down


def ways(module: ir.Module) -> list[Way]:
    """The ways to the graphs that unscale gradients, `()` for the main graph alone."""
    return list(_below(module.main, (), module, frozenset()))


def _below(
    graph: ir.Graph, way: Way, module: ir.Module, above: frozenset[str]
) -> Iterator[Way]:
    if is_marked(graph):
        yield way
        return
    for turn, name in _turns(graph, module):
        if name not in above:
            inside = module.functions[name]
            yield from _below(inside, (*way, turn), module, above | {name})


def every_way(module: ir.Module) -> Iterator[Way]:
    """A way to each graph, the main graph's `()` first, and each after those above."""
    pending = collections.deque[tuple[ir.Graph, Way]]([(module.main, ())])
    seen: set[str] = set()
    while pending:
        graph, way = pending.popleft()
        yield way
        for turn, name in _turns(graph, module):
            if name not in seen:
                seen.add(name)
                pending.append((module.functions[name], (*way, turn)))


def _turns(graph: ir.Graph, module: ir.Module) -> Iterator[tuple[Turn, str]]:
    """The calls of a graph, with the names of the functions that are called."""
    for node, call in calls.calls(graph, module.functions):
        for number, name in enumerate(calls.callees_of(node, call)):
            if name in module.functions:
                yield Turn(node.name, number), name


def is_marked(graph: ir.Graph) -> bool:
    """Whether gradients are unscaled in a graph."""
    return any(node.flag(ir.UNSCALE) for node in graph.nodes.values())


def graphs_on(module: ir.Module, way: Way) -> list[ir.Graph]:
    """The graphs on a way, from the main graph to the last."""
    found = [module.main]
    for turn in way:
        node, call = _call(module, found[-1], turn)
        found.append(module.functions[calls.callees_of(node, call)[turn.callee]])
    return found


def _call(module: ir.Module, graph: ir.Graph, turn: Turn) -> tuple[ir.Node, Call]:
    node = graph.nodes[turn.node]
    call = calls.call_of(node, module.functions)
    assert call is not None
    return node, call


def runs_once(module: ir.Module, way: Way) -> bool:
    """Whether the main graph itself makes the only call on a way, and makes it once."""
    return len(way) == 1 and calls.calls_once(module.main.nodes[way[0].node].op)


def is_compiled(module: ir.Module, way: Way) -> bool:
    """Whether XLA compiles the last graph on a way."""
    graphs = graphs_on(module, way)
    nodes = (graph.nodes[turn.node] for graph, turn in zip(graphs, way, strict=False))
    flags = any(calls.MUST_COMPILE in graph.flags for graph in graphs)
    return flags or any(node.flag(calls.MUST_COMPILE) for node in nodes)


def argument_of_main(module: ir.Module, way: Way, number: int) -> int | None:
    """The main graph's argument that is handed on as one of the last graph's.

    Args:
      module: the function.
      way: to the last graph.
      number: of the argument of that.

    Returns:
      Its number; None where it is made on the way, or a loop may change it.
    """
    graphs = graphs_on(module, way)
    for graph, inner, turn in reversed(
        list(zip(graphs, graphs[1:], way, strict=False))
    ):
        node, call = _call(module, graph, turn)
        edge = _passed(node, call, inner, number)
        while edge is not None and edge[0] in graph.nodes:
            source = graph.nodes[edge[0]]
            edge = source.inputs[0] if _is_identity(source) else None
        names = [arg.name for arg in graph.args]
        if edge is None or edge[0] not in names:
            return None
        number = names.index(edge[0])
    return number


def _is_identity(node: ir.Node) -> bool:
    return facts(node.op).kind is Kind.IDENTITY


def _passed(node: ir.Node, call: Call, inner: ir.Graph, number: int) -> ir.Edge | None:
    """What a call passes as an argument, if that is the same each time."""
    if call.loop and number not in invariant(inner):
        return None
    if not call.each:
        return node.inputs[call.skip + number]
    last = len(inner.args) - number  # after state and elements come what never changes
    others = len(node.inputs) - call.skip - len(node.types("Tstate"))
    return node.inputs[-last] if last <= others else None


def keeping(
    module: ir.Module, way: Way, edges: Sequence[tuple[ir.Edge, int]], name: str
) -> ir.Module:
    """A function that also writes to a variable, each time it comes by.

    It draws other numbers than the function does, whose seeds it would begin with.
    It is to be called as it is written: of a loop's body TensorFlow's graph optimizers
    keep only what they see a reader of.

    Args:
      module: the function.
      way: to the graph that the tensors are in.
      edges: the tensors, with their types; they are written together.
      name: of the new function, and of the variable.
    """
    graphs = graphs_on(module, way)
    made = dataclasses.replace(_writing(graphs[-1], edges, name), name=f"{name}_0")
    functions = dict(module.functions)
    steps = reversed(list(zip(graphs, way, strict=False)))
    for number, (graph, turn) in enumerate(steps, start=1):
        functions[made.name] = made
        node, call = _call(module, graph, turn)
        old = calls.callees_of(node, call)[turn.callee]
        node = calls.renamed(node, call, {old: made.name})
        made = graph.with_nodes({**graph.nodes, node.name: node})
        made = dataclasses.replace(made, name=f"{name}_{number}")
    recorder = ir.Module(dataclasses.replace(made, name=name), functions)
    return generators.drawing_apart(recorder, name, others=module.functions)


def _writing(
    graph: ir.Graph, edges: Sequence[tuple[ir.Edge, int]], name: str
) -> ir.Graph:
    added = {node.name: node for node in _writers(edges, name)}
    return dataclasses.replace(
        graph,
        nodes={**graph.nodes, **added},
        control_results=(*graph.control_results, _KEPT),
    )


def _writers(edges: Sequence[tuple[ir.Edge, int]], name: str) -> Iterator[ir.Node]:
    value, variable = f"{_KEPT}_value", f"{_KEPT}_variable"
    given = tuple(edge for edge, _ in edges)
    types = ir.Types(tuple(number for _, number in edges))
    yield _on_cpu(value, "OptionalFromValue", given, {"Toutput_types": types})
    kind: dict[str, ir.Value] = {"dtype": ir.Type(ir.VARIANT)}
    where: dict[str, ir.Value] = {"shape": ir.OneShape(()), "shared_name": name}
    yield _on_cpu(variable, "VarHandleOp", (), {**kind, **where})
    both = ((variable, 0), (value, 0))
    yield _on_cpu(_KEPT, "AssignVariableOp", both, {**kind, "validate_shape": False})


def _on_cpu(
    name: str, op: str, inputs: tuple[ir.Edge, ...], attrs: dict[str, ir.Value]
) -> ir.Node:
    return ir.Node(name, op, inputs, (), "/device:CPU:0", None, attrs)
