"""What the floating-point operands of nodes are computed from, up to products.

The facts that `conditioning` decides by. Nothing is refused here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.fixed_filters import weighted_means
from amp.graph_rewrite.candidates.sums import sums_nothing, sums_squares
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Role

# How many nodes are looked at upstream of an operand for what both operands share.
_NEAR = 24
# So many edges at most: what joins more has not all of them looked at.
_MANY = 128


class Upstream:
    """Where the floating-point inputs of nodes are made, found once for each node.

    Args:
      graph: one function.
      typed: its nodes.
      given: its arguments that hold tensors made outside of all functions.

    Attributes:
      typed: the nodes.
      filters: those that convolve with a fixed filter, which is no source, and it.
    """

    def __init__(
        self,
        graph: ir.Graph,
        typed: Mapping[str, Typed],
        given: Collection[str] = (),
    ) -> None:
        self.typed = typed
        self.filters = weighted_means(graph, typed, given)
        views = [typed[name] for name in graph.order]
        self._squares = {v.node.name for v in views if sums_squares(graph, v)}
        self._single = {v.node.name for v in views if sums_nothing(graph, v)}
        self._found: dict[str, list[ir.Edge]] = {}

    def of(self, view: Typed) -> list[ir.Edge]:
        """Of the inputs of one node."""
        name = view.node.name
        if name not in self._found:
            self._found[name] = self._read(view)
        return self._found[name]

    def ends(self, view: Typed) -> bool:
        """Whether a node is a product, and none that is a reduction of an operand."""
        return view.facts.role is Role.COMPUTE and not self.sums(view)

    def rounds(self, view: Typed) -> bool:
        """Whether a node is a product that sums too: its result is 16-bit anyway."""
        return self.ends(view) and view.node.name not in self._single

    def sums(self, view: Typed) -> bool:
        """Whether what a node gives are sums or means of what it reads."""
        name = view.node.name
        return view.facts.sums or name in self.filters or name in self._squares

    def behind(self, edge: ir.Edge) -> Iterator[tuple[ir.Edge, tuple[bool, bool]]]:
        """The edges that one is computed from, up to the results of products.

        Yields each once, with whether a reduction and a subtraction lie between, on the
        shortest path. Casts count as what they cast, as a rewrite adds some.
        """
        edge, typed = _origin(edge, self.typed), self.typed
        pending, seen = [(edge, (False, False))], {edge}
        for count, (at, between) in enumerate(pending):
            yield at, between
            view = typed.get(at[0])
            row = None if view is None else view.row
            if view is None or row is None or self.ends(view) or count >= _NEAR:
                continue
            below = (between[0] or self.sums(view), between[1] or row.subtracts)
            for source in self.of(view):
                if source not in seen and len(pending) < _MANY:
                    seen.add(source)
                    pending.append((source, below))

    def _read(self, view: Typed) -> list[ir.Edge]:
        if ir.FLOATS.isdisjoint(view.signature.types):
            return []
        pairs = zip(view.node.inputs, view.ins, strict=False)
        floats = [edge for edge, slot in pairs if slot.type in ir.FLOATS]
        if view.node.name in self.filters:
            floats.remove(self.filters[view.node.name])
        return [_origin(edge, self.typed) for edge in floats]


def _origin(edge: ir.Edge, typed: Mapping[str, Typed]) -> ir.Edge:
    """The edge that this one is a cast, or an unchanged copy, of."""
    while (view := typed.get(edge[0])) is not None and view.facts.copies:
        if view.ins[edge[1]].type not in ir.FLOATS:
            break
        edge = view.node.inputs[edge[1]]
    return edge
