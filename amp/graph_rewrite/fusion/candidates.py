"""Which nodes of a graph may be in a cluster, and which may be in the same one.

Nothing is priced here and no cluster is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp.graph_rewrite.candidates.context import Context
from amp.graph_rewrite.fusion.convex_groups import Link
from amp.graph_rewrite.graph import bridges, ir, op_schema, shapes
from amp.graph_rewrite.ops.op_table import Kind, facts

# A constant of at most this many elements is copied into a cluster that reads it.
_SMALL = 16


class Members:
    """A graph's nodes with their types and shapes, and the conditions for clusters.

    Args:
      graph: the graph, casts in place.
      context: of the use, with a lookup for the functions that were made.
    """

    def __init__(self, graph: ir.Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        self.returned = {result.edge[0] for result in graph.results}
        fetched, controls = context.fetched, set(graph.control_results)
        self._named = controls | fetched | context.fed
        waited = {name for n in graph.nodes.values() for name in n.controls}
        self._needed = self.returned | waited | fetched

    def signature(self, name: str) -> op_schema.Signature:
        known = self.context.lookup(self.graph.nodes[name].op)
        if known is None:
            return op_schema.UNKNOWN
        return known.signature(self.graph.nodes[name])

    def type_of(self, edge: ir.Edge) -> int:
        if edge[0] in self.graph.nodes:
            return self.signature(edge[0]).outs[edge[1]].type
        return next(arg.type for arg in self.graph.args if arg.name == edge[0])

    def is_bridge(self, name: str) -> bool:
        """Whether a node is a cast between float32 and the 16-bit type."""
        node = self.graph.nodes.get(name)
        return node is not None and bridges.is_bridge(node, self.context.format.number)

    def is_up(self, name: str) -> bool:
        """Whether a node is a cast from the 16-bit type to float32."""
        node = self.graph.nodes.get(name)
        return node is not None and bridges.is_up(node, self.context.format.number)

    def copied(self, name: str) -> bool:
        """Whether a cluster that reads a node gets a copy of it inside.

        These are small constants and casts to float32, so that clusters read 16 bits.
        """
        node = self.graph.nodes.get(name)
        if node is None:
            return False
        constant = facts(node.op).kind is Kind.CONSTANT
        if node.controls and not constant and not node.has(ir.LATE):
            return False
        small = constant and self.elements((name, 0)) in range(1, _SMALL + 1)
        return small or (self.is_up(name) and self.elements((name, 0)) > 0)

    def elements(self, edge: ir.Edge) -> int:
        """Number of elements, 0 if it is not known."""
        size = self.graph.size(edge)
        return shapes.elements(size) if shapes.whole(size) else 0

    def fusible(self, name: str) -> bool:
        """Whether a node may be in a cluster."""
        node = self.graph.nodes[name]
        row = facts(node.op)
        if not row.fusible or self.is_up(name) or name in self._named:
            return False
        if node.has(ir.EMULATED):
            return False
        given = row.constant_operands
        if not all(self._constant(node.inputs[index]) for index in given):
            return False
        sized = (*node.inputs, (name, 0))
        return self._typed(name, given) and all(map(self.elements, sized))

    def _constant(self, edge: ir.Edge) -> bool:
        node = self.graph.nodes.get(edge[0])
        if node is None or facts(node.op).kind is not Kind.CONSTANT:
            return False
        return self.copied(edge[0])

    def _typed(self, name: str, given: Sequence[int]) -> bool:
        signature = self.signature(name)
        free = [s for i, s in enumerate(signature.ins) if i not in given]
        slots = (*free, *signature.outs)
        allowed = (ir.FLOAT, ir.BOOL, self.context.format.number)
        floats = any(slot.type != ir.BOOL for slot in slots)
        return floats and all(slot.type in allowed for slot in slots)

    def links(self, fusible: set[str]) -> Iterator[Link]:
        """The dependencies between nodes, for `convex_groups.convex`.

        Two nodes may be in one cluster if both are fusible, on one device, and have the
        same number of elements.
        """
        graph = self.graph
        for name, node in graph.nodes.items():
            inside = name in fusible
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
        devices = {self.graph.nodes[n].device for n in (edge[0], name)}
        return len(devices) == 1 and self.elements(edge) == self.elements((name, 0))

    def idle(self, members: set[str]) -> frozenset[str]:
        """The nodes that need not run any more when the `members` run in clusters.

        These are the members, and casts to float32 that only members read.
        """
        read = self.graph.readers
        ups = (n for n in self.graph.nodes if self.is_up(n) and (n, 0) in read)
        return frozenset(members.union(n for n in ups if self.only_for(n, members)))

    def given(self, group: set[str], name: str) -> bool:
        """Whether a node outside the group reads a member's result."""
        readers = {reader for reader, _ in self.graph.readers.get((name, 0), ())}
        if name in self.returned:
            return True
        return any(not self.only_for(reader, group) for reader in readers - group)

    def only_for(self, name: str, group: set[str]) -> bool:
        """Whether a node is a cast to float32 that only members of a group read."""
        if name in self._needed or not (self.is_up(name) and self.copied(name)):
            return False
        return all(r in group for r, _ in self.graph.readers.get((name, 0), ()))
