"""`FloatPaths`: the floating-point tensors of a module, from node to node.

Into functions and over the trips of loops. Used by `solutions`, `recurrences`
and `settling_loops`, which walk them. Nothing is refused here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, Site, UseEdge
from amp.graph_rewrite.graph.gradients_taken import is_trained
from amp.graph_rewrite.graph.handovers import Handovers
from amp.graph_rewrite.ops.op_table import Kind, Role, facts


class FloatPaths:
    """The paths of one module.

    Args:
      graphs: every use's graph.
      typed: its nodes.
      sites: the calls, loops and branches of the module that are known.

    Attributes:
      graphs, typed, sites: as given.
      handovers: what these calls hand on.
    """

    def __init__(
        self,
        graphs: Mapping[FunctionUse, ir.Graph],
        typed: Mapping[FunctionUse, Mapping[str, Typed]],
        sites: Mapping[Member, Site],
    ) -> None:
        self.graphs, self.typed, self.sites = graphs, typed, sites
        self.handovers = Handovers(graphs, sites.values())

    @functools.cached_property
    def trained(self) -> bool:
        """Whether gradients are taken."""
        return is_trained(self.graphs.values())

    def has(self, kind: Kind) -> bool:
        """Whether any node is of a kind."""
        return any(facts(op).kind is kind for g in self.graphs.values() for op in g.ops)

    def view(self, member: Member) -> Typed:
        """A node with its types."""
        use, name = member
        return self.typed[use][name]

    def operands(self, member: Member) -> list[UseEdge]:
        """The floating-point tensors that a node reads."""
        view = self.view(member)
        pairs = zip(view.node.inputs, view.ins, strict=False)
        return [(member[0], edge) for edge, slot in pairs if slot.type in ir.FLOATS]

    def read(self, members: Iterable[Member]) -> set[UseEdge]:
        """What some nodes read, from before casts, moves and calls."""
        return {self.root(at) for each in members for at in self.operands(each)}

    def results(self, member: Member) -> list[UseEdge]:
        """The floating-point tensors that a node makes."""
        use, name = member
        outs = enumerate(self.view(member).outs)
        return [(use, (name, index)) for index, slot in outs if slot.type in ir.FLOATS]

    def is_linear(self, member: Member) -> bool:
        """Whether a node is linear in each operand: one of products, sums and moves.

        One of whose operands is a constant is linear in the other one, if it multiplies
        or divides by it.
        """
        row = self.view(member).facts
        if row.role in (Role.COMPUTE, Role.MOVE) or row.sums:
            return True
        if row.copies or row.adds or (row.subtracts and row.zero):
            return True
        operands = [*map(self.root, self.operands(member))]
        if row.poles == (1,) and row.kind is not Kind.ROUND:
            return len(operands) == 2 and self._is_constant(operands[1])
        return row.kind is Kind.PRODUCT and any(map(self._is_constant, operands))

    def is_arithmetic(self, member: Member) -> bool:
        """Whether a node multiplies elements, divides by some, or takes their root."""
        row = self.view(member).facts
        return row.multiplies or bool(row.singular)

    def _is_constant(self, place: UseEdge) -> bool:
        view = self.typed[place[0]].get(place[1][0])
        return view is not None and view.facts.kind is Kind.CONSTANT

    def is_product(self, member: Member) -> bool:
        """Whether a node is a product that may be 16-bit."""
        return self.view(member).facts.role is Role.COMPUTE

    def squares(self, member: Member) -> bool:
        """Whether a node is the product of a tensor and itself."""
        roots = [*map(self.root, self.operands(member))]
        return len(roots) == 2 and roots[0] == roots[1]

    def root(self, place: UseEdge) -> UseEdge:
        """What a tensor was cast or moved from, or passed to a function as."""
        while (source := self._source(place)) is not None:
            place = source
        return place

    def _source(self, place: UseEdge) -> UseEdge | None:
        use, (name, _) = place
        if name in self.typed[use] and (use, name) not in self.sites:
            row, sources = self.view((use, name)).facts, self.operands((use, name))
            moves = row.moves
        else:  # one that a loop does not change is also what its body returns
            sources = [at for at in self.handovers.back.get(place, ()) if at != place]
            moves = True
        return sources[0] if moves and len(sources) == 1 else None
