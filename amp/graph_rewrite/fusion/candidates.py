"""Which nodes of a graph may be in a cluster, and which may be in the same one.

Nothing is priced here and no cluster is made.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from amp.graph_rewrite.candidates.context import Typed, TypedGraph
from amp.graph_rewrite.candidates.sources import needed, sources
from amp.graph_rewrite.cost.unmoved import moves_nothing
from amp.graph_rewrite.fusion.convex_groups import Link
from amp.graph_rewrite.graph import bridges, ir, op_schema, shapes
from amp.graph_rewrite.ops.op_table import Kind

# A constant of at most this many elements is copied into a cluster that reads it.
_SMALL = 16


class Members:
    """A graph's nodes with their types and shapes, and the conditions for clusters.

    Args:
      made: the graph, casts in place.

    Attributes:
      graph, context: those of `made`.
      bridges: the casts between float32 and the 16-bit type.
      ups: those of them to float32.
      returned: the nodes whose tensors are results of the graph.
    """

    def __init__(self, made: TypedGraph) -> None:
        self.graph, self.context = made.graph, made.context
        self._views, graph, context = made.typed, made.graph, made.context
        number = context.format.number
        casts = [n for n in graph.nodes.values() if bridges.is_bridge(n, number)]
        self.bridges = {node.name for node in casts}
        self.ups = {node.name for node in casts if bridges.is_up(node, number)}
        self._args = {arg.name: arg.type for arg in graph.args}
        self._allowed = {ir.FLOAT, ir.BOOL, number}
        self._elements: dict[ir.Edge, int] = {}
        self.returned = {result.edge[0] for result in graph.results}
        fetched, controls = context.fetched, set(graph.control_results)
        self._named = controls | fetched | context.fed
        self._live = needed(graph) if graph.name else graph.nodes.keys()
        self._waiting: dict[str, list[str]] = defaultdict(list)
        for name in graph.nodes:
            for source in graph.nodes[name].controls if name in self._live else ():
                self._waiting[source].append(name)
        self._needed = self.returned | self._waiting.keys() | fetched
        self._copied = {n for n, view in made.typed.items() if self._is_copied(view)}

    def signature(self, name: str) -> op_schema.Signature:
        return self._views[name].signature

    def type_of(self, edge: ir.Edge) -> int:
        if edge[0] in self._views:
            return self._views[edge[0]].outs[edge[1]].type
        return self._args[edge[0]]

    def copied(self, name: str) -> bool:
        """Whether a cluster that reads a node gets a copy of it inside.

        These are small constants and casts to float32, so that clusters read 16 bits.
        """
        return name in self._copied

    def _is_copied(self, view: Typed) -> bool:
        name = view.node.name
        if name in self.context.fed:
            return False
        if view.facts.kind is Kind.CONSTANT:
            return 1 <= self.elements((name, 0)) <= _SMALL
        if name not in self.ups or (view.node.controls and not view.node.has(ir.LATE)):
            return False
        return self.elements((name, 0)) > 0 and not self._reads_reference(view.node)

    def _reads_reference(self, node: ir.Node) -> bool:
        """Whether a node reads a reference variable, which a call cannot be given."""
        return any(self.type_of(edge) > ir.REF_OFFSET for edge in node.inputs)

    def elements(self, edge: ir.Edge) -> int:
        """Number of elements, 0 if it is not known."""
        known = self._elements.get(edge)
        if known is None:
            size = self.graph.size(edge)
            known = shapes.elements(size) if shapes.whole(size) else 0
            self._elements[edge] = known
        return known

    def fusible(self, name: str) -> bool:
        """Whether a node may be in a cluster."""
        view = self._views[name]
        node, row = view.node, view.facts
        given = row.constant_operands
        if not row.fusible and not (given and self.moves_nothing(name)):
            return False
        if name in self.ups or name in self._named or node.has(ir.EMULATED):
            return False
        if name not in self._live or self._reads_reference(node):
            return False
        data = (edge for index, edge in enumerate(node.inputs) if index not in given)
        sized = (*data, (name, 0))
        return self._typed(name, given) and all(map(self.elements, sized))

    def moves_nothing(self, name: str) -> bool:
        """Whether a node hands its operand on as it is, at the sizes of the call."""
        return moves_nothing(self.graph, self._views[name])

    def _typed(self, name: str, given: Sequence[int]) -> bool:
        view = self._views[name]
        types: Set[int] = view.signature.types
        if given:
            free = (slot.type for i, slot in enumerate(view.ins) if i not in given)
            types = {*free, *view.signature.made}
        return types <= self._allowed and types != {ir.BOOL}

    def links(self, fusible: set[str]) -> Iterator[Link]:
        """The dependencies between nodes, in the order that `convex_groups` asks for.

        Two nodes may be in one cluster if both are fusible, on one device, and have the
        same number of elements.
        """
        graph = self.graph
        for name in filter(self._live.__contains__, graph.order):
            node, inside = graph.nodes[name], name in fusible
            for source in node.controls:
                if source in graph.nodes:
                    joins = inside and source in fusible
                    yield source, name, joins and self._alike((source, 0), name)
            for edge in node.inputs:
                if inside and self.copied(edge[0]):
                    inputs = graph.nodes[edge[0]].inputs
                    edge = inputs[0] if inputs else ("", 0)
                if edge[0] in graph.nodes:
                    joins = inside and edge[0] in fusible and self._alike(edge, name)
                    yield edge[0], name, joins

    def _alike(self, edge: ir.Edge, name: str) -> bool:
        nodes = self.graph.nodes
        if nodes[edge[0]].device != nodes[name].device:
            return False
        return self.elements(edge) == self.elements((name, 0))

    def idle(self, members: set[str]) -> frozenset[str]:
        """The nodes that need not run any more when the `members` run in clusters.

        These are the members, and casts to float32 that only members read.
        """
        ups = filter(self._readers, self.ups)
        return frozenset(members.union(n for n in ups if self.only_for(n, members)))

    @functools.cached_property
    def sources(self) -> dict[str, int]:
        """As `sources.sources` says."""
        return sources(self.graph, self._views, self.context.fed)

    def waiting_for(self, group: set[str]) -> set[str]:
        """The nodes outside of a group that read it, or wait for it by control."""
        found = {reader for name in group for reader in self._readers(name)}
        for name in group:
            found.update(self._waiting.get(name, ()))
        return {name for name in found - group if not self.only_for(name, group)}

    def given(self, group: set[str], name: str) -> bool:
        """Whether a node outside the group reads a member's result."""
        if name in self.returned:
            return True
        readers = self._readers(name) - group
        return any(not self.only_for(reader, group) for reader in readers)

    def only_for(self, name: str, group: set[str]) -> bool:
        """Whether a node is a cast to float32 that only members of a group read."""
        if name not in self.ups or name in self._needed or not self.copied(name):
            return False
        return self._readers(name) <= group

    def _readers(self, name: str) -> set[str]:
        """The nodes that read a node's result, without those that never run."""
        readers = self.graph.readers.get((name, 0), ())
        return {reader for reader, _ in readers if reader in self._live}
