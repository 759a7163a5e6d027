"""Builds a float32 step that does without the loss scale that 16 bits need.

A scale costs a multiplication and two checks for each gradient, and a branch around the
update: on a GPU, where a step of many small kernels is as long as its launches, an
eighth of it. A plan in float32 that may do without is then no slower than the step of a
program without this package. Whether it may is not decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Set

import numpy as np

from amp.graph_rewrite.assign.nominee import Nominee
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import loss_scale
from amp.graph_rewrite.ops.op_table import Kind, facts


def scaling(
    graphs: Mapping[FunctionUse, ir.Graph],
) -> Mapping[FunctionUse, frozenset[str]]:
    """The nodes that scale, check and unscale gradients, {} if they are to stay.

    They stay where any gradient was scaled by hand: a program that asks for a scale may
    also ask for what comes of an overflow. Such a gradient names no variable. And where
    the scale is read for more (`_is_read_otherwise`).

    Args:
      graphs: the graph of each use.
    """
    found: dict[FunctionUse, frozenset[str]] = {}
    for use, graph in graphs.items():
        names: set[str] = set()
        for node in graph.nodes.values():
            if node.flag(ir.SEED) and node.op == loss_scale.SCALE:
                names.add(node.name)
            elif node.flag(ir.UNSCALE) and not _is_identity(node):
                if node.op != loss_scale.UNSCALE or not node.text(ir.SOURCE):
                    return {}
                names |= {node.name, *_checks(graph, node.inputs[0])}
        if names and _is_read_otherwise(graph, names):
            return {}
        if names:
            found[use] = frozenset(names)
    return found


def priced_without_scale(priced: Priced, nominee: Nominee) -> Priced:
    """Prices by which only the function as given scales, checks and unscales."""
    names = scaling(_graphs(priced)) if nominee.unscaled else {}
    return priced.sparing(names) if names else priced


def without_scale(
    applied: Mapping[FunctionUse, ir.Graph], priced: Priced, nominee: Nominee
) -> Mapping[FunctionUse, ir.Graph]:
    """The graphs of a plan, without the loss scale if the plan does without::

        Mul(seed, scale)               ->    seed
        MulNoNan(gradient, inverse)    ->    gradient
        All(IsFinite(gradient))        ->    True
        If(overflowed, skip, update)   ->    update()    # or its branches exchanged

    Every node keeps its name. The scaler counts a step without an overflow, as it does
    where float32 is scaled: which writes are its own is not told from the program's,
    whose sums over replicas hang on the checks as well.

    Args:
      applied: the graph of each use.
      priced: the module that was planned.
      nominee: the plan that was asked for.
    """
    names = scaling(_graphs(priced)) if nominee.unscaled else {}
    found = {use: _without_scale(applied[use], names[use]) for use in names}
    return {**applied, **found} if found else applied


def _graphs(priced: Priced) -> dict[FunctionUse, ir.Graph]:
    return {use: one.graph for use, one in priced.analysis.uses.items()}


def _without_scale(graph: ir.Graph, names: frozenset[str]) -> ir.Graph:
    nodes, checks = dict(graph.nodes), list[ir.Edge]()
    for name in names:
        node = graph.nodes[name]
        if node.flag(ir.SEED) or node.flag(ir.UNSCALE):
            nodes[name] = _handed_on(node)
        elif node.op == loss_scale.EVERY:
            nodes[name] = _true(node)
            checks.append((name, 0))
    known = _Known(graph, checks)
    for node in graph.nodes.values():
        taken = known.value(node.inputs[0]) if node.op in loss_scale.BRANCH else None
        if taken is not None:
            nodes[node.name] = _taken(node, taken)
    changed = {name for name in nodes if nodes[name] is not graph.nodes[name]}
    for name, node in nodes.items():  # edges are written with names of another op
        if name not in changed and any(source in changed for source, _ in node.inputs):
            nodes[name] = dataclasses.replace(node, pristine=False)
    return graph.with_nodes(nodes)


def _is_read_otherwise(graph: ir.Graph, names: Set[str]) -> bool:
    """Whether a scale does more than to scale, to unscale and to be moved by its rule.

    The gradient of a gradient is unscaled by nodes without a mark, and a program may
    multiply a threshold by the scale. Both would be off by the scale if they alone
    stayed. What is not known (a call that takes the scale, a result) is more.

    Args:
      graph: of one use.
      names: the nodes that scale, check and unscale gradients in it.
    """
    marked = (graph.nodes[name] for name in names)
    factors = {node.inputs[1] for node in marked if node.flag(ir.SEED)}
    behind = graph.computed_from(factors)
    nodes = (node for name, node in graph.nodes.items() if name in behind)
    scales = {node.inputs[0] for node in nodes if facts(node.op).only_reads}
    if not scales:
        return True
    edges: dict[str, list[ir.Edge]] = {}  # by the node that makes them
    for edge in {*graph.readers, *(result.edge for result in graph.results)}:
        edges.setdefault(edge[0], []).append(edge)
    results = {result.edge for result in graph.results}
    pending, seen = list(scales), set(scales)
    while pending:
        edge = pending.pop()
        if edge in results and edge not in scales:
            return True
        for name, index in graph.readers.get(edge, ()):
            row, node = facts(graph.nodes[name].op), graph.nodes[name]
            if (name in names and index == 1) or _moves(node, scales):
                continue
            unknown = edge in scales and not row.only_reads
            if unknown or row.kind is Kind.WRITE or node.op in calls.CALLS:
                return True
            onward = set(edges.get(name, ())) - seen
            seen |= onward
            pending += onward
    return False


def _moves(node: ir.Node, scales: Container[ir.Edge]) -> bool:
    """Whether a node writes a scale, or a count: what a scaler's rule does."""
    if facts(node.op).kind is not Kind.WRITE:
        return False
    return node.inputs[0] in scales or ir.INTEGERS.issuperset(node.types("dtype"))


def _checks(graph: ir.Graph, gradient: ir.Edge) -> Iterator[str]:
    """The nodes that check whether a gradient is finite."""
    for name, index in graph.readers.get(gradient, ()):
        node = graph.nodes[name]
        if node.op == loss_scale.SUM_ROWS and index == 0:
            yield from _checks(graph, (name, 0))
        elif node.op == loss_scale.FINITE:
            yield name
            for reader, _ in graph.readers.get((name, 0), ()):
                if graph.nodes[reader].op == loss_scale.EVERY:
                    yield reader


def _is_identity(node: ir.Node) -> bool:
    return facts(node.op).kind is Kind.IDENTITY


def _handed_on(node: ir.Node) -> ir.Node:
    """An Identity of a product's first operand, with the product's marks."""
    marks = {ir.UNSCALE: True} if node.flag(ir.UNSCALE) else {}
    updates: dict[str, ir.Value] = {"T": ir.Type(node.types("T")[0]), **marks}
    given = node.inputs[:1]
    return ir.Node(
        node.name, "Identity", given, node.controls, node.device, None, updates
    )


def _true(node: ir.Node) -> ir.Node:
    updates: dict[str, ir.Value] = {
        "dtype": ir.Type(ir.BOOL),
        "value": ir.Tensor(np.array(True), ir.BOOL),
    }
    return ir.Node(node.name, "Const", (), node.controls, "", None, updates)


def _taken(node: ir.Node, predicate: bool) -> ir.Node:
    """A call of the branch that runs."""
    (branch,) = node.functions("then_branch" if predicate else "else_branch")
    updates: dict[str, ir.Value] = {
        "f": ir.Function(branch),
        "Tin": ir.Types(node.types("Tin")),
        "Tout": ir.Types(node.types("Tout")),
    }
    rest = node.inputs[1:]
    return ir.Node(
        node.name, loss_scale.CALL, rest, node.controls, node.device, None, updates
    )


class _Known:
    """The booleans of a graph that follow from some that are true."""

    def __init__(self, graph: ir.Graph, true: Iterable[ir.Edge]) -> None:
        self._graph = graph
        self._values: dict[ir.Edge, bool | None] = dict.fromkeys(true, True)

    def value(self, edge: ir.Edge) -> bool | None:
        """What a boolean is, None if that is not known."""
        if edge not in self._values:
            self._values[edge] = None  # on a cycle
            node = self._graph.nodes.get(edge[0])
            self._values[edge] = None if node is None else self._computed(node)
        return self._values[edge]

    def _computed(self, node: ir.Node) -> bool | None:
        if facts(node.op).kind is Kind.CONSTANT:
            value = node.tensor()
            single = value is not None and value.dtype == bool and value.size == 1
            return bool(value.item()) if single else None
        opposite = node.op == loss_scale.OPPOSITE
        if not opposite and node.op not in loss_scale.AGREE:
            return None
        count = 1 if node.op in loss_scale.REDUCED else None
        values = {self.value(edge) for edge in node.inputs[:count]}
        if len(values) != 1:
            return None
        (value,) = values
        return (not value) if opposite and value is not None else value
