"""The loops that XLA makes of a graph's nodes, and the tensors between them.

XLA computes elementwise work and moves of neighbours in one loop, whose inner tensors
are never in memory; reductions and products read theirs from memory. `priced` asks for
the elements that are moved. Approximate on purpose: no loop is made here, and nothing
is priced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import bridges, ir
from amp.graph_rewrite.graph.shapes import elements
from amp.graph_rewrite.ops.op_table import Kind

# Work that XLA for CPUs computes with its neighbours in one loop (`CanBeLoopFused` in
# XLA's cpu_instruction_fusion.cc). For GPUs it is much the same.
_FUSED = frozenset({"elementwise", "composite", "transcendental", "copy", "gather"})
# Loops that go through operands in memory and write their results: on a CPU a reduction
# of more than 32 terms is one over windows first (`TreeReductionRewriter`), which fuses
# with nothing. On a GPU what they reduce is computed on the way.
_PASSES = frozenset({"reduce", "softmax", "loss", "normalise"})
# The result is not computed anew in each loop that reads it, as it is where that costs
# little (`InstructionFusion::IsExpensive`).
_ONCE = frozenset({"transcendental"})
# These make no tensor: what they give was in memory, before or as another shape.
_ALIASES = (Kind.IDENTITY, Kind.RESHAPE, Kind.STOP_GRADIENT, Kind.CAST)
_GIVEN = (Kind.CONSTANT, Kind.PLACEHOLDER, Kind.READ_VARIABLE, Kind.VARIABLE)
_APART = (*_GIVEN, Kind.WRITE, Kind.SOLVE)


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """The elements that go through memory because of a node.

    Attributes:
      own: of its results, written by a loop or read by loops; in the type of the node.
      given: of values that were in memory before the function ran, read by loops.
      starts: whether a loop ends at the node.
      widened: of its operands, if it is a product: those that no loop makes, so that
        it takes a loop of their own to convert them.
      narrowed: of its results, if it is a product that no loop reads.
    """

    own: int = 0
    given: int = 0
    starts: bool = False
    widened: int = 0
    narrowed: int = 0


class Loops:
    """The loops of one function.

    Args:
      graph: the function.
      typed: its nodes.
      device_type: "CPU" or "GPU".
    """

    def __init__(
        self, graph: ir.Graph, typed: Mapping[str, Typed], device_type: str
    ) -> None:
        self._graph, self._typed = graph, typed
        self._reading = _FUSED if device_type == "CPU" else _FUSED | _PASSES
        self._returned = {self._source(result.edge) for result in graph.results}
        self._parents: dict[str, str] = {}
        self._readers: dict[ir.Edge, set[str]] = {}
        for name in graph.order:
            for edge in graph.nodes[name].inputs:
                if not self._is_alias(name):
                    self._readers.setdefault(self._source(edge), set()).add(name)
        for edge, readers in self._readers.items():
            if not self.in_memory(edge):
                for reader in readers:
                    self._parents[self._loop(reader)] = self._loop(edge[0])

    def is_loop(self, name: str) -> bool:
        """Whether a node is computed in a loop, with others or alone."""
        return self._works(name, _FUSED | _PASSES)

    def _works(self, name: str, kinds: Container[str]) -> bool:
        view = self._typed.get(name)  # an argument is no node
        row = None if view is None else view.facts
        if row is None or not row.op:  # nor does an op without a row say what it does
            return False
        return row.work in kinds and row.kind not in _APART

    def in_memory(self, edge: ir.Edge) -> bool:
        """Whether a tensor is in memory, and not only computed within a loop."""
        edge = self._source(edge)
        readers = self._readers.get(edge, set())
        if not self._works(edge[0], _FUSED) or edge in self._returned:
            return True
        once = self._works(edge[0], _ONCE) and len(readers) > 1
        return once or not all(self._works(one, self._reading) for one in readers)

    def touch(self, edge: ir.Edge) -> bool:
        """Whether a loop makes or reads a tensor, and so may convert it on the way."""
        edge = self._source(edge)
        readers = self._readers.get(edge, ())
        return self.is_loop(edge[0]) or any(map(self.is_loop, readers))

    def moved(self, name: str) -> Moved:
        """The elements that go through memory because of a node."""
        if self._is_alias(name):
            return Moved()
        loop, own, narrowed, starts = self.is_loop(name), 0, 0, False
        for index in range(len(self._typed[name].outs)):
            edge = (name, index)
            if not self.in_memory(edge):
                continue
            reads, size = self._reads(edge), self._size(edge)
            own += (reads + loop) * size
            narrowed += 0 if reads else size
            starts = loop
        sources = dict.fromkeys(map(self._source, self._graph.nodes[name].inputs))
        if not loop:
            unmade = (edge for edge in sources if not self.is_loop(edge[0]))
            widened = sum(map(self._size, unmade))
            return Moved(own, widened=widened, narrowed=narrowed)
        read = (edge for edge in sources if self._is_given(edge[0]))
        return Moved(own, sum(map(self._size, read)), starts)

    def _reads(self, edge: ir.Edge) -> int:
        """How many loops read a tensor."""
        readers = filter(self.is_loop, self._readers.get(edge, ()))
        return len({self._loop(reader) for reader in readers})

    def _size(self, edge: ir.Edge) -> int:
        return elements(self._graph.size(edge))

    def _is_alias(self, name: str) -> bool:
        view = self._typed.get(name)
        if view is None:
            return False
        return view.facts.kind in _ALIASES or bridges.is_barrier(view.node)

    def _is_given(self, name: str) -> bool:
        view = self._typed.get(name)
        return view is None or view.facts.kind in _GIVEN

    def _source(self, edge: ir.Edge) -> ir.Edge:
        """The edge where the values of a tensor are computed."""
        while self._is_alias(edge[0]):
            edge = self._graph.nodes[edge[0]].inputs[0]
        return edge

    def _loop(self, name: str) -> str:
        """One node of the loop that a node is part of, the same for all of them."""
        while (parent := self._parents.get(name, name)) != name:
            self._parents[name] = self._parents.get(parent, parent)
            name = parent
        return name
