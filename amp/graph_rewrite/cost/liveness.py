"""Liveness of tensors: which are stored for the backward pass, and their late readers.

Order and sizes only; the price of memory is not known here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.sources import needed, sources
from amp.graph_rewrite.graph import frames, ir, shapes
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Read


class Liveness:
    """Levels of a graph's nodes, and the level after which most bytes are stored.

    The level of a node is the largest number of working nodes on a path that ends at
    it; a constant waits for nobody. A tensor is stored from the level of its producer
    to that of its last reader. The peak is the level after which the stored tensors
    have most elements; in a training step it is where the backward pass begins. Nodes
    that pass their inputs on unchanged, and casts between floating types, do not count
    as working, so that a graph has the same levels before and after it is rewritten.

    Args:
      graph: the graph.
      typed: its nodes with their types.
      fed: nodes besides placeholders that a caller may feed.
    """

    def __init__(
        self, graph: ir.Graph, typed: Mapping[str, Typed], fed: Container[str] = ()
    ) -> None:
        self._graph = graph
        # A call of a function runs all that is needed, a run of a session a part.
        self._sources = {} if graph.name else sources(graph, typed, fed)
        self._running = needed(graph) if graph.name else graph.nodes.keys()
        self._typed = typed
        self._branches = frames.Branches(graph)
        # Of each edge that is an unchanged copy, the edge that it is a copy of.
        self._origins: dict[ir.Edge, ir.Edge] = {}
        self._levels: dict[str, int] = {}
        self._waited: dict[str, list[str]] = {}
        for name in graph.order:
            self._levels[name] = self._level_of(typed[name])
        self._peak = self._find_peak()

    def _level_of(self, view: Typed) -> int:
        """The level of a node; notes which edges it only hands on."""
        levels, origins, node = self._levels, self._origins, view.node
        level = 0
        for edge in node.inputs:
            level = max(level, levels.get(origins.get(edge, edge)[0], 0))
        waits = bool(node.controls) and view.facts.kind is not Kind.CONSTANT
        if waits and not node.has(ir.LATE):
            level = max(level, *map(self._level, node.controls))
        if not _is_idle(view):
            return level + 1
        for index, edge in enumerate(node.inputs):
            origins[node.name, index] = origins.get(edge, edge)
        return level

    def late(self, name: str) -> bool:
        """Whether a node runs after the peak (in the backward pass)."""
        return self._level(name) > self._peak

    def held(self, edge: ir.Edge) -> bool:
        """Whether a tensor is made before the peak and takes memory of its own."""
        view = self._typed.get(edge[0])
        return view is not None and not view.facts.in_memory and not self.late(edge[0])

    def before(self, reads: Collection[Read]) -> str:
        """A late node that a cast for some late reads can wait for, "" if none.

        It is another input of the first of the readers that run, on a lower level than
        all of them. As levels never fall along a path, waiting for it makes no cycle:
        what runs depends on no reader that does not. A run that executes any of the
        readers must execute all that it depends on.
        """
        run = [read for read in reads if read[0] in self._running] or reads
        first, given = min(run, key=lambda read: (self._level(read[0]), read))
        edge = self._graph.nodes[first].inputs[given]
        for name in self._waited_for(first):
            if self._runs_with(name, edge) and self._is_behind(reads, name):
                return name
        return ""

    def _waited_for(self, first: str) -> list[str]:
        """The late nodes under a node that it waits for, the highest first.

        The list is kept, because a join is asked about each of its inputs.
        """
        if first not in self._waited:
            node, level = self._graph.nodes[first], self._level(first)
            names = {self._origin(edge)[0] for edge in node.inputs} | {*node.controls}
            late = ((self._level(name), name) for name in names if self.late(name))
            below = sorted((one for one in late if one[0] < level), reverse=True)
            self._waited[first] = [name for _, name in below]
        return self._waited[first]

    def _runs_with(self, name: str, edge: ir.Edge) -> bool:
        """Whether a node runs wherever there is a tensor: it is in no other branch."""
        return self._branches.of((name, 0)) <= self._branches.of(edge)

    def _is_behind(self, reads: Collection[Read], name: str) -> bool:
        """Whether every reader depends on all sources of a node."""
        needed, found = self._sources.get(name, 0), self._sources
        return all(needed & ~found.get(reader, 0) == 0 for reader, _ in reads)

    def _level(self, name: str) -> int:
        return self._levels.get(name, 0)

    def _find_peak(self) -> int:
        last: dict[ir.Edge, int] = {}
        levels, origins = self._levels, self._origins
        for name, node in self._graph.nodes.items():
            level = levels.get(name, 0)
            for edge in node.inputs:
                edge = origins.get(edge, edge)
                if level >= last.get(edge, 0):
                    last[edge] = level
        end = max(self._levels.values(), default=0)
        last.update((self._origin(result.edge), end) for result in self._graph.results)
        change: dict[int, int] = defaultdict(int)
        for edge, until in last.items():
            view = self._typed.get(edge[0])
            if view is None or view.facts.in_memory or edge[0] not in self._levels:
                continue
            if edge[1] < len(view.outs) and view.outs[edge[1]].type in ir.FLOATS:
                size = shapes.elements(self._graph.size(edge))
                change[self._levels[edge[0]]] += size
                change[until] -= size
        stored, most, peak = 0, 0, 0
        for level in sorted(change):
            stored += change[level]
            if stored > most:
                most, peak = stored, level
        return peak

    def _origin(self, edge: ir.Edge) -> ir.Edge:
        """The edge of which this one is an unchanged copy."""
        return self._origins.get(edge, edge)


def _is_idle(view: Typed) -> bool:
    """Whether a node passes its inputs on one by one, at most cast."""
    row, casts = view.facts, view.facts.kind is Kind.CAST
    free = view.row is not None and row.work == "free" and not row.in_frames
    if not (casts or free) or not view.node.inputs or not view.outs:
        return False
    pairs = list(zip(view.ins, view.outs, strict=False))
    if casts:
        return all({i.type, o.type} <= ir.FLOATS for i, o in pairs)
    return all(i.type == o.type for i, o in pairs)
