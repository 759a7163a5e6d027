"""Which arguments of a function are iterators or datasets, and what they give.

Loops inside a function take their batches from these, and no argument tells how large
the batches are. Called before a function's first call, which may be its only one:
`functions.first_element` has the first element of each looked at, so there is none to
be looked at where the function might fill first what its pipelines read. No dataset is
touched here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp.graph_rewrite.graph import calls, dataset_loops, ir, op_schema
from amp.graph_rewrite.graph.shapes import whole
from amp.graph_rewrite.normalize import python_calls
from amp.graph_rewrite.ops import structure
from amp.graph_rewrite.ops.op_table import facts
from amp.graph_rewrite.ops.row import Kind

_TAKES = frozenset({Kind.NEXT, Kind.MAYBE_NEXT})


@dataclasses.dataclass(frozen=True, slots=True)
class ElementSource:
    """An argument of the main function from which elements are taken.

    Attributes:
      index: its number.
      types: the DataType numbers of an element's tensors.
      shapes: their shapes, as far as they are the same in every element.
      dataset: whether it is a dataset, of which each reader makes an iterator.
    """

    index: int
    types: tuple[int, ...]
    shapes: tuple[ir.Shape, ...]
    dataset: bool


def element_sources(module: ir.Module) -> tuple[ElementSource, ...]:
    """The arguments of the main function whose elements differ in size.

    None if something may be filled before the first element is taken.

    Args:
      module: with calls inlined, as far as they can be.
    """
    if _fills(module):
        return ()
    found: dict[int, ElementSource] = {}
    arguments = _Arguments(module)
    for graph in module.graphs():
        for node in graph.nodes.values():
            edge, shapes = ("", 0), node.shapes("output_shapes")
            types = node.types("output_types")
            call = calls.call_of(node, module.functions)
            dataset = call is not None and call.each
            if facts(node.op).kind in _TAKES:
                edge = node.inputs[0]
            elif call is not None and dataset:
                edge = node.inputs[0]
                types, shapes = _of_dataset(node, call, module)
            if not all(map(whole, shapes)):
                for index in arguments.behind(graph, edge, dataset):
                    found[index] = ElementSource(index, types, shapes, dataset)
    return tuple(found.values())


def _fills(module: ir.Module) -> bool:
    """Whether a node fills something and does not come after the first element.

    A loop that fills and takes is judged by what is in it.
    """
    fills = _nodes(module, _is_filling)
    if not any(fills.values()):
        return False
    takes = _nodes(module, lambda node: facts(node.op).kind in _TAKES or _is_each(node))
    graphs = (graph for graph in module.graphs() if takes[graph.name])
    return any(not fills[g.name] <= _behind(g, takes[g.name]) for g in graphs)


def _nodes(module: ir.Module, does: Callable[[ir.Node], bool]) -> dict[str, set[str]]:
    """By graph, the nodes that do something, by themselves or by what they call."""
    own = {
        graph.name: {node.name for node in graph.nodes.values() if does(node)}
        for graph in module.graphs()
    }
    functions = python_calls.reaching(module, filter(own.get, module.functions))
    for graph in module.graphs() if functions else ():
        own[graph.name].update(python_calls.calling(graph, functions))
    return own


def _is_filling(node: ir.Node) -> bool:
    """Whether a node runs Python, or puts something where others may find it."""
    if node.op in structure.PYTHON:
        return True
    if not op_schema.is_stateful(node.op) or node.op in calls.CALLS:
        return False
    known = op_schema.schema(node.op)
    gives = known is None or known.signature(node).outs
    writes = facts(node.op).kind is Kind.WRITE or node.op in structure.TELLING
    return not gives and not writes


def _is_each(node: ir.Node) -> bool:
    return node.op in calls.CALLS and calls.CALLS[node.op].each


def _behind(graph: ir.Graph, nodes: set[str]) -> set[str]:
    """These nodes, and those that come after one of them."""
    found = set(nodes)
    for name in graph.order:
        if not found.isdisjoint(graph.nodes[name].sources):
            found.add(name)
    return found


def _of_dataset(
    node: ir.Node, call: calls.Call, module: ir.Module
) -> tuple[tuple[int, ...], tuple[ir.Shape, ...]]:
    """Types and shapes of an element of the dataset that a node goes through."""
    for name in calls.callees_of(node, call):
        if name in module.functions:
            graph = module.functions[name]
            places = dataset_loops.arguments_of(node, call, 0, len(graph.args))
            args = [graph.args[place] for place in places]
            shapes = tuple(graph.shape((arg.name, 0)) for arg in args)
            return tuple(arg.type for arg in args), shapes
    return (), ()


class _Arguments:
    """Finds the main function's arguments that values inside its functions are."""

    def __init__(self, module: ir.Module) -> None:
        self._main, self._functions = module.main, module.functions
        self._callers: dict[str, list[tuple[ir.Graph, ir.Node, calls.Call]]] = {}
        for graph in module.graphs():
            for node, call in calls.calls(graph, module.functions):
                for name in calls.callees_of(node, call):
                    self._callers.setdefault(name, []).append((graph, node, call))

    def behind(self, graph: ir.Graph, edge: ir.Edge, dataset: bool) -> set[int]:
        """The numbers of the main function's arguments that an edge may be.

        Not of a dataset that something else reads, which might ask for more than its
        elements.
        """
        found: set[int] = set()
        pending, seen = [(graph, edge)], set()
        while pending:
            graph, edge = pending.pop()
            while edge[0] in graph.nodes and _passes(graph.nodes[edge[0]]):
                edge = graph.nodes[edge[0]].inputs[0]
            names = [arg.name for arg in graph.args]
            if edge[0] not in names or (graph.name, edge) in seen:
                continue
            seen.add((graph.name, edge))
            place = names.index(edge[0])
            if graph is self._main and not (dataset and self._read(edge)):
                found.add(place)
            for caller, node, call in self._callers.get(graph.name, ()):
                for index, source in enumerate(node.inputs):
                    given = dataset_loops.arguments_of(node, call, index, len(names))
                    if place in given and index >= call.skip:
                        pending.append((caller, source))
        return found

    def _read(self, edge: ir.Edge) -> bool:
        """Whether a node reads an argument that does not go through its elements."""
        nodes = (self._main.nodes[name] for name, _ in self._main.readers[edge])
        known = (calls.call_of(node, self._functions) for node in nodes)
        return any(call is None for call in known)


def _passes(node: ir.Node) -> bool:
    return facts(node.op).kind is Kind.IDENTITY
