"""Finds the sizes that a module's tensors have at the call that plans are made for.

A traced graph leaves dimensions unknown that differ from call to call (a batch, a
length). Their sizes are taken from one call, the first, and TensorFlow's own inference
of shapes gives those of everything computed from them (`graph_sizes`). Only costs may
depend on sizes: a function is called later with others. What holds at every call is
`ir.Graph.shape`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.graph import calls, ir, op_schema, shapes
from amp.graph_rewrite.graph.shapes import whole
from amp.graph_rewrite.normalize.assumed_sizes import AssumedSizes
from amp.graph_rewrite.normalize.graph_sizes import GraphSizes
from amp.graph_rewrite.normalize.size_questions import Infer


@dataclasses.dataclass(frozen=True, slots=True)
class SizesAtCall:
    """What is known of the call that plans are made for.

    Attributes:
      infer: has TensorFlow infer shapes.
      args: the shapes of the main function's arguments, in their order; () if none is
        known.
      tensors: the shapes of further tensors of the main graph: those that are fed, or
        batches that an iterator gave.
    """

    infer: Infer
    args: Sequence[ir.Shape] = ()
    tensors: Mapping[ir.Edge, ir.Shape] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Sized:
    """A module with the sizes of one call.

    Attributes:
      module: its graphs have `sizes` wherever their shapes are not wholly known.
      given: the shapes that were taken from the call because the trace does not have
        them, by the name of the argument or node.
      assumed: the edges of the main graph whose sizes follow from nothing known.
    """

    module: ir.Module
    given: Mapping[str, ir.Shape]
    assumed: tuple[ir.Edge, ...]


def sized(module: ir.Module, call: SizesAtCall | None) -> Sized:
    """Adds to each graph the sizes that its tensors have at a call.

    A function that is called from several places gets the sizes of the first of them.
    A loop's variables keep the sizes that they begin with, and a branch's result has
    the sizes of the larger branch. Graphs with no unknown dimension stay as they are.

    Args:
      module: with calls inlined, as far as they can be.
      call: None to leave the module as it was traced.
    """
    if call is None:
        return Sized(module, {}, ())
    main = module.main
    args = [(arg.name, 0) for arg in main.args]
    told = {**dict(zip(args, call.args, strict=False)), **call.tensors}
    given = _news(main, told)
    sizing = _ModuleSizes(module, call.infer, AssumedSizes(given.values()))
    sizing.add(main, given)
    functions = {name: sizing.with_sizes(g) for name, g in module.functions.items()}
    return Sized(
        ir.Module(sizing.with_sizes(main), functions),
        {f"{n}:{i}" if i else n: shape for (n, i), shape in given.items()},
        tuple(sizing.assumed),
    )


def sized_module(made: Sized) -> ir.Module:
    """The module that `sized` made, for the steps after it."""
    return made.module


def _news(graph: ir.Graph, told: Mapping[ir.Edge, ir.Shape]) -> dict[ir.Edge, ir.Shape]:
    """The shapes that say more than is known of a graph at every call."""
    return {
        edge: shape
        for edge, shape in told.items()
        if whole(shape) and not whole(graph.shape(edge))
    }


class _ModuleSizes:
    """Finds the sizes of a module's graphs, each when its first caller is sized.

    Attributes:
      assumed: edges of the main graph whose sizes were assumed.
    """

    def __init__(self, module: ir.Module, infer: Infer, assume: AssumedSizes) -> None:
        self._functions = module.functions
        self._lookup = op_schema.lookup_of(module)
        self._infer, self._assume = infer, assume
        self._known: dict[str, dict[ir.Edge, ir.Shape]] = {}
        self.assumed: list[ir.Edge] = []

    def add(self, graph: ir.Graph, given: Mapping[ir.Edge, ir.Shape]) -> None:
        """Finds the sizes in a graph, and in what it calls.

        Args:
          graph: one that was not added yet.
          given: the sizes of its arguments and of further tensors.
        """
        known = self._known[graph.name] = dict(given)
        called = {
            node.name: functools.partial(self._called, call)
            for node in graph.nodes.values()
            if (call := calls.call_of(node, self._functions)) is not None
        }
        one = GraphSizes(graph, known, self._lookup, self._assume)
        one.find(self._infer, called)
        if graph.name not in self._functions:
            self.assumed += one.assumed

    def with_sizes(self, graph: ir.Graph) -> ir.Graph:
        """The graph with the sizes that were found."""
        if not self._known.get(graph.name):
            return graph
        return dataclasses.replace(graph, sizes=self._size(graph))

    def _size(self, graph: ir.Graph) -> ir.ShapeSource:
        known, shape = self._known[graph.name], graph.shape
        return lambda edge: known[edge] if edge in known else shape(edge)

    def _called(
        self, call: calls.Call, node: ir.Node, given: Sequence[ir.Shape]
    ) -> list[ir.Shape]:
        """The sizes of a call's results, given those of the node's inputs."""
        given = given[call.skip :]
        names = [n for n in calls.callees_of(node, call) if n in self._functions]
        returned = [self._returned(self._functions[name], given) for name in names]
        if call.loop and returned:
            pairs = zip(given, returned[-1], strict=False)
            return [begun if whole(begun) else made for begun, made in pairs]
        return [max(each, key=shapes.elements) for each in zip(*returned, strict=False)]

    def _returned(self, graph: ir.Graph, given: Sequence[ir.Shape]) -> list[ir.Shape]:
        if graph.name not in self._known:
            args = [(arg.name, 0) for arg in graph.args]
            self.add(graph, _news(graph, dict(zip(args, given, strict=False))))
        size = self._size(graph)
        return [size(result.edge) for result in graph.results]
