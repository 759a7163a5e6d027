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
from collections.abc import Iterable, Mapping, Sequence

from amp.graph_rewrite.graph import calls, dataset_loops, ir, op_schema, shapes
from amp.graph_rewrite.graph.shapes import whole
from amp.graph_rewrite.normalize.assumed_sizes import AssumedSizes
from amp.graph_rewrite.normalize.graph_sizes import GraphSizes
from amp.graph_rewrite.normalize.size_questions import Infer
from amp.graph_rewrite.ops.op_table import COMPUTE, facts
from amp.graph_rewrite.ops.row import Kind


@dataclasses.dataclass(frozen=True, slots=True)
class SizesAtCall:
    """What is known of the call that plans are made for.

    Attributes:
      infer: has TensorFlow infer shapes.
      args: the shapes of the main function's arguments, in their order; () if none is
        known.
      tensors: the shapes of further tensors of the main graph: those that are fed, or
        batches that an iterator gave.
      elements: the shapes of the tensors of an element, for each dataset or iterator
        of which one was looked at.
    """

    infer: Infer
    args: Sequence[ir.Shape] = ()
    tensors: Mapping[ir.Edge, ir.Shape] = dataclasses.field(default_factory=dict)
    elements: Sequence[Sequence[ir.Shape]] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Sized:
    """A module with the sizes of one call.

    Attributes:
      module: its graphs have `sizes` wherever their shapes are not wholly known.
      given: the shapes that were taken from the call because the trace does not have
        them, by the name of the argument or node.
      assumed: the edges of the main graph whose sizes follow from nothing known.
      hidden: nodes and arguments of its functions that give elements of datasets whose
        sizes are assumed.
      lengths: whether a tensor of `given` may differ from call to call in more than its
        first dimension, the batch's: sequences have any number of lengths.
    """

    module: ir.Module
    given: Mapping[str, ir.Shape]
    assumed: tuple[ir.Edge, ...]
    hidden: tuple[str, ...] = ()
    lengths: bool = False


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
    sizing = _ModuleSizes(module, call, AssumedSizes(given.values()))
    sizing.add(main, given)
    functions = {name: sizing.with_sizes(g) for name, g in module.functions.items()}
    return Sized(
        ir.Module(sizing.with_sizes(main), functions),
        {
            f"{n}:{i}" if i else n: shape
            for (n, i), shape in (given | sizing.elements).items()
        },
        tuple(sizing.assumed),
        tuple(dict.fromkeys(name for name, _ in sizing.hidden)),
        sizing.lengths or _has_lengths(main, given),
    )


def sized_module(made: Sized) -> ir.Module:
    """The module that `sized` made, for the steps after it."""
    return made.module


# Nodes that give the element of a dataset.
_GIVES = frozenset({Kind.NEXT, Kind.ELEMENT})


def _computes(graph: ir.Graph, functions: Mapping[str, ir.Graph]) -> bool:
    """Whether a graph has products, or calls what may have some."""
    return any(
        node.op in COMPUTE or calls.call_of(node, functions) is not None
        for node in graph.nodes.values()
    )


def _gives_element(graph: ir.Graph, edge: ir.Edge) -> bool:
    return edge[0] in graph.nodes and facts(graph.nodes[edge[0]].op).kind in _GIVES


def _fits(shape: ir.Shape, partly: ir.Shape) -> bool:
    """Whether a shape may be that of which a part is known."""
    if shape is None or partly is None:
        return partly is None
    pairs = zip(shape, partly, strict=False)
    return len(shape) == len(partly) and all(b in (a, -1) for a, b in pairs)


def _news(graph: ir.Graph, told: Mapping[ir.Edge, ir.Shape]) -> dict[ir.Edge, ir.Shape]:
    """The shapes that say more than is known of a graph at every call."""
    return {
        edge: shape
        for edge, shape in told.items()
        if whole(shape) and not whole(graph.shape(edge))
    }


def _has_lengths(graph: ir.Graph, given: Iterable[ir.Edge]) -> bool:
    """Whether more than the first dimension of any is unknown."""
    found = map(graph.shape, given)
    return any(shape is None or -1 in shape[1:] for shape in found)


class _ModuleSizes:
    """Finds the sizes of a module's graphs, each when its first caller is sized.

    Attributes:
      assumed: edges of the main graph whose sizes were assumed.
      elements: the sizes of edges that give elements of datasets, as one was.
      hidden: such edges of functions whose sizes were assumed.
      lengths: whether an element may differ from others in more than its batch.
    """

    def __init__(
        self, module: ir.Module, call: SizesAtCall, assume: AssumedSizes
    ) -> None:
        self._functions = module.functions
        self._lookup = op_schema.lookup_of(module)
        self._call, self._assume = call, assume
        self._known: dict[str, dict[ir.Edge, ir.Shape]] = {}
        self.assumed: list[ir.Edge] = []
        self.elements: dict[ir.Edge, ir.Shape] = {}
        self.hidden: list[ir.Edge] = []
        self.lengths = False

    def add(self, graph: ir.Graph, given: Mapping[ir.Edge, ir.Shape]) -> None:
        """Finds the sizes in a graph, and in what it calls.

        Args:
          graph: one that was not added yet.
          given: the sizes of its arguments and of further tensors.
        """
        told = _news(graph, self._told_by_elements(graph))
        self._note(graph, told)
        known = self._known[graph.name] = {**told, **given}
        called = {
            node.name: functools.partial(self._called, call)
            for node in graph.nodes.values()
            if (call := calls.call_of(node, self._functions)) is not None
        }
        one = GraphSizes(graph, known, self._lookup, self._assume)
        one.find(self._call.infer, called)
        if graph.name not in self._functions:
            self.assumed += one.assumed
        else:
            self.hidden += [e for e in one.assumed if _gives_element(graph, e)]

    def _note(self, graph: ir.Graph, told: Mapping[ir.Edge, ir.Shape]) -> None:
        """Notes the sizes of elements."""
        self.elements |= told
        self.lengths |= _has_lengths(graph, told)

    def _told_by_elements(self, graph: ir.Graph) -> dict[ir.Edge, ir.Shape]:
        """The sizes of the elements that nodes of a graph give, as far as one fits."""
        if not self._call.elements:
            return {}
        found: dict[ir.Edge, ir.Shape] = {}
        for node in graph.nodes.values():
            if facts(node.op).kind in _GIVES:
                partly = node.shapes("output_shapes")
                edges = [(node.name, index) for index in range(len(partly))]
                found |= zip(edges, self._element(partly), strict=False)
        return found

    def _element(self, partly: Sequence[ir.Shape]) -> Sequence[ir.Shape]:
        """The element that was looked at and that has these shapes; () if none has."""
        for element in self._call.elements:
            if len(element) == len(partly) and all(map(_fits, element, partly)):
                return element
        return ()

    def with_sizes(self, graph: ir.Graph) -> ir.Graph:
        """The graph with the sizes that were found."""
        if not self._known.get(graph.name):
            return graph
        return graph.of_same_nodes(sizes=self._size(graph))

    def _size(self, graph: ir.Graph) -> ir.ShapeSource:
        known, shape = self._known[graph.name], graph.shape
        return functools.cache(lambda e: known[e] if e in known else shape(e))

    def _called(
        self, call: calls.Call, node: ir.Node, given: Sequence[ir.Shape]
    ) -> list[ir.Shape]:
        """The sizes of a call's results, given those of the node's inputs."""
        if call.each:
            return self._for_each(node, call, given)
        given = given[call.skip :]
        names = [n for n in calls.callees_of(node, call) if n in self._functions]
        returned = [self._returned(self._functions[name], given) for name in names]
        if call.loop and returned:
            pairs = zip(given, returned[-1], strict=False)
            return [begun if whole(begun) else made for begun, made in pairs]
        return [max(each, key=shapes.elements) for each in zip(*returned, strict=False)]

    def _for_each(
        self, node: ir.Node, call: calls.Call, given: Sequence[ir.Shape]
    ) -> list[ir.Shape]:
        """The same for one that runs for each element of a dataset."""
        for name in calls.callees_of(node, call):
            if name in self._functions:
                graph = self._functions[name]
                args: list[ir.Shape] = [None] * len(graph.args)
                for index in range(call.skip, len(node.inputs)):
                    (place,) = dataset_loops.arguments_of(node, call, index, len(args))
                    args[place] = given[index]
                places = dataset_loops.arguments_of(node, call, 0, len(args))
                edges = [(graph.args[place].name, 0) for place in places]
                element = self._element([graph.shape(edge) for edge in edges])
                for place, edge, shape in zip(places, edges, element, strict=False):
                    args[place] = shape
                    self._note(graph, _news(graph, {edge: shape}))
                self._returned(graph, args)
                if not element and _computes(graph, self._functions):
                    self.hidden += [e for e in edges if not whole(graph.shape(e))]
        return list(given[call.skip :])

    def _returned(self, graph: ir.Graph, given: Sequence[ir.Shape]) -> list[ir.Shape]:
        if graph.name not in self._known:
            args = [(arg.name, 0) for arg in graph.args]
            self.add(graph, _news(graph, dict(zip(args, given, strict=False))))
        size = self._size(graph)
        return [size(result.edge) for result in graph.results]
