"""Finds the sizes of one graph's tensors at a call, by TensorFlow's own inference.

Only what the trace leaves unknown is asked for, with what it is computed from. `sizes`
has the module around the graph; no cost is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.graph.shapes import whole
from amp.graph_rewrite.normalize.assumed_sizes import AssumedSizes
from amp.graph_rewrite.normalize.size_questions import (
    Infer,
    Known,
    Question,
    RefusedError,
)
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind, facts

# Rounds of inference per graph. Each ends at calls and at sizes that must be assumed;
# what needs more rounds keeps its unknown dimensions.
MOST_ROUNDS = 50
# Nodes that inference may refuse, as sizes that were assumed need not fit, before the
# graph is left as far as it is known.
MOST_REFUSED = 8
# Values of these types may tell a shape: sizes, and handles of lists of tensors.
_TELLING = ir.INTEGERS | {ir.VARIANT}
# Tensors of these types have no sizes that cost anything.

# Gives the sizes of the results of a calling node from those of its inputs.
SizesOfCall: TypeAlias = Callable[[ir.Node, Sequence[ir.Shape]], Sequence[ir.Shape]]


class GraphSizes:
    """Finds the sizes of one graph::

        until all sizes are known:
          answer calls whose inputs' sizes are known
          infer the sizes of nodes that depend on no other call
          compute the axes of gradients of broadcasts, which inference does not
          assume the sizes of nodes that depend on nothing unknown and are unknown still

    Args:
      graph: the graph.
      known: the sizes of its arguments and of other tensors, by edge; those that are
        found are added.
      lookup: the schemas of ops and functions.
      assume: gives the sizes that follow from nothing.

    Attributes:
      assumed: the edges whose sizes were assumed.
    """

    def __init__(
        self,
        graph: ir.Graph,
        known: dict[ir.Edge, ir.Shape],
        lookup: op_schema.Lookup,
        assume: AssumedSizes,
    ) -> None:
        self.assumed: list[ir.Edge] = []
        self._graph, self._known, self._assume = graph, known, assume
        self._lookup = lookup
        self._args = {arg.name for arg in graph.args}
        self._types = {(arg.name, 0): arg.type for arg in graph.args}
        self._partly: dict[ir.Edge, ir.Shape] = {}  # inferred in part
        self._values: dict[ir.Edge, tuple[int, ...]] = {}  # of axes that were computed
        # Nodes that inference is not asked about: calls that were answered, and nodes
        # whose sizes were given or assumed. What reads them reads a placeholder.
        self._closed = {name for name, _ in known}
        results = (result.edge for result in graph.results)
        read = (*graph.readers, *results, *self._last())
        self._missing = {
            edge
            for edge in read
            if edge not in known
            and not whole(graph.shape(edge))
            and self._type(edge) not in ir.HANDLES
            and not self._is_opaque(edge)
        }
        self._made: dict[str, list[ir.Edge]] = {}  # missing edges, by node
        for edge in sorted(self._missing):
            self._made.setdefault(edge[0], []).append(edge)

    def find(self, infer: Infer, called: Mapping[str, SizesOfCall]) -> None:
        """Adds all sizes to `known`.

        Args:
          infer: has TensorFlow infer shapes.
          called: by the name of each calling node, what gives its results' sizes.
        """
        self._assume_rest(n for n in self._made if n in self._args or n in self._closed)
        order = self._order(called)
        refused = 0
        for _ in range(MOST_ROUNDS):
            ready, asked = self._ready(order, called)
            if not ready and not asked:
                return
            before = len(self._known), len(self._closed)
            try:
                self._infer(infer, ready, asked)
            except RefusedError as e:
                refused += 1
                if e.node not in self._graph.nodes or refused > MOST_REFUSED:
                    return
                self._assume_rest([e.node])
                continue
            self._assume_rest(self._first(order, (*ready, *asked)))
            if before == (len(self._known), len(self._closed)):
                return

    def size(self, edge: ir.Edge) -> ir.Shape:
        """The size of an edge as far as it is known."""
        if edge in self._known:
            return self._known[edge]
        return self._partly.get(edge) or self._graph.shape(edge)

    def _last(self) -> list[ir.Edge]:
        """The float32 outputs that no node reads, in a graph that a session may run.

        Those it fetches. A function tells its results, so it has no others that matter.
        """
        if self._graph.results:
            return []
        read = {name for name, _ in self._graph.readers}
        outputs = ((name, 0) for name in self._graph.nodes if name not in read)
        return [edge for edge in outputs if self._type(edge) == ir.FLOAT]

    def _order(self, called: Container[str]) -> list[str]:
        """The calls, and the nodes to ask about with all that tells their sizes."""
        graph = self._graph
        needed = {name for name in self._made if name in graph.nodes}
        pending = sorted(needed)
        while pending:
            node = graph.nodes[pending.pop()]
            for edge in () if node.name in called else node.inputs:
                source = edge[0]
                if source in graph.nodes and source not in needed and self._tells(edge):
                    needed.add(source)
                    pending.append(source)
        if not needed and not called:
            return []
        return [name for name in graph.order if name in needed or name in called]

    def _type(self, edge: ir.Edge) -> int:
        if edge not in self._types:
            node = self._graph.nodes[edge[0]]
            known = self._lookup(node.op)
            outs = () if known is None else known.signature(node).outs
            known_here = edge[1] < len(outs)
            number = outs[edge[1]].type % ir.REF_OFFSET if known_here else 0
            self._types[edge] = number
        return self._types[edge]

    def _is_opaque(self, edge: ir.Edge) -> bool:
        """Whether an edge has what a kernel leaves for another, in sizes of its own."""
        node = self._graph.nodes.get(edge[0])
        if node is None or not facts(node.op).opaque:
            return False
        known = self._lookup(node.op)
        outs = () if known is None else known.signature(node).outs
        return edge[1] < len(outs) and outs[edge[1]].port in facts(node.op).opaque

    def _tells(self, edge: ir.Edge) -> bool:
        """Whether the value of an edge may tell a shape."""
        return self._type(edge) in _TELLING

    def _ready(
        self, order: Sequence[str], called: Mapping[str, SizesOfCall]
    ) -> tuple[list[str], list[str]]:
        """The nodes to infer in this round, and the broadcasts to ask about.

        Calls whose inputs have sizes are answered.
        """
        ready, asked = [], []
        waiting: set[str] = set()
        for name in order:
            if name in self._closed:
                continue
            node = self._graph.nodes[name]
            row, blocked = facts(node.op), self._depends(node, waiting)
            if row.kind is Kind.BROADCAST_AXES:
                waiting.add(name)
                asked += [] if blocked else [name]
            elif name in called or row.in_frames:
                reads = node.inputs if name in called else node.inputs[:1]
                if any(edge in self._missing for edge in reads):
                    waiting.add(name)
                else:
                    self._answer(node, called.get(name, _as_given))
            elif blocked:
                waiting.add(name)
            elif self._rest(name):
                ready.append(name)
        return ready, asked

    def _depends(self, node: ir.Node, names: Container[str]) -> bool:
        """Whether an output's shape depends on nodes: on their sizes or values."""
        return any(
            edge[0] in names and (edge in self._missing or self._tells(edge))
            for edge in node.inputs
        )

    def _answer(self, node: ir.Node, sizes_of: SizesOfCall) -> None:
        """Takes the sizes of a call's results."""
        sizes = sizes_of(node, [self.size(edge) for edge in node.inputs])
        for edge in self._made.get(node.name, ()):
            if edge[1] < len(sizes):
                self._take(edge, sizes[edge[1]])
        self._assume_rest([node.name])

    def _infer(self, infer: Infer, ready: list[str], asked: list[str]) -> None:
        """Asks for the shapes of nodes and for the values behind broadcasts."""
        nodes = self._graph.nodes
        known = Known(self._type, self.size, self._values, self._computed)
        question = Question(nodes, known, ready)
        values = {n: [question.values_of(e) for e in nodes[n].inputs] for n in asked}
        shape = infer(question.nodes)
        for name in ready:
            for edge in self._rest(name):
                self._take(edge, shape(edge))
        for name, edges in values.items():
            self._broadcast(name, [shape(edge) for edge in edges])

    def _computed(self, edge: ir.Edge) -> bool:
        name = edge[0]
        inside = name in self._graph.nodes and name not in self._closed
        return inside and self._tells(edge)

    def _broadcast(self, name: str, operands: Sequence[ir.Shape]) -> None:
        """Notes the axes of a broadcast between operands of these shapes."""
        known = [shape for shape in operands if shape is not None and whole(shape)]
        if len(known) < 2:  # what they are computed from has no sizes yet
            return
        self._closed.add(name)
        for index in range(2):
            axes = tuple(arithmetic.broadcast_axes(known, index))
            self._values[name, index] = axes
            self._take((name, index), (len(axes),))

    def _take(self, edge: ir.Edge, shape: ir.Shape) -> None:
        if whole(shape):
            self._known[edge] = shape
            self._missing.discard(edge)
        elif shape is not None:
            self._partly[edge] = shape

    def _rest(self, name: str) -> list[ir.Edge]:
        """The outputs of a node whose sizes are still missing."""
        return [edge for edge in self._made.get(name, ()) if edge in self._missing]

    def _first(self, order: Sequence[str], asked: Iterable[str]) -> list[str]:
        """Nodes whose sizes inference cannot tell, although all that it reads is known.

        A batch from an iterator, or what depends on the values of data (`tf.where`).

        Args:
          order: all nodes.
          asked: those that inference was asked about.
        """
        found: list[str] = []
        told = set(asked)
        waiting: set[str] = set()
        for name in order:
            if name in self._closed:
                continue
            node = self._graph.nodes[name]
            missing = bool(self._rest(name))
            if missing or self._depends(node, waiting):
                waiting.add(name)
            if missing and name in told and not self._depends(node, waiting):
                found.append(name)
        return found

    def _assume_rest(self, names: Iterable[str]) -> None:
        """Assumes the sizes of nodes and arguments as far as they are missing still."""
        for name in names:
            self._closed.add(name)
            for edge in self._rest(name):
                self.assumed.append(edge)
                self._take(edge, self._assumed(edge))
                self._missing.discard(edge)

    def _assumed(self, edge: ir.Edge) -> ir.Shape:
        node = self._graph.nodes.get(edge[0])
        read = () if node is None else node.inputs
        if node is not None and facts(node.op).kind is Kind.RESHAPE:
            before = self.size(read[0])
            if whole(before):
                return self._assume.reshaped(self.size(edge), before)
        given = [self.size(e) for e in read if self._type(e) not in ir.HANDLES]
        return self._assume.shape(self.size(edge), given)


def _as_given(node: ir.Node, given: Sequence[ir.Shape]) -> list[ir.Shape]:
    """The sizes of what a node of a v1 loop or branch passes on."""
    return [given[0]] * 2
