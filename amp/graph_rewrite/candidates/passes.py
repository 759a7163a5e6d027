"""Forward and backward passes: which pass a node is in, and where products are in it.

A pass is the nodes of one order of differentiation: 0 for the forward pass, 1 for the
gradient of it, 2 for a gradient of that. No rule about precision may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.candidates.call_values import CallValues
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import gradient_scopes, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.graph.gradients_taken import DIFFERENTIATED, GRADIENT
from amp.graph_rewrite.graph.handovers import Handovers
from amp.graph_rewrite.ops.op_table import Kind, Role

# The tensors of these types hold no value that a product gave.
_NO_VALUES = ir.INTEGERS | {ir.BOOL, ir.STRING, ir.RESOURCE}


Nodes: TypeAlias = Mapping[FunctionUse, Set[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
    """The passes of a module.

    Attributes, each by the use of a function:
      order: of each node that belongs to a backward pass, the order of that pass; the
        others are in the forward pass.
      downstream: the nodes downstream of a product of their own pass, by a path of
        nodes of this pass.
      upstream: the nodes upstream of such a product in the same sense.
      opening: the nodes of a backward pass that lead to one of its first products, or
        past all products to a sum of gradients. What only a node behind a product reads
        (the derivative of an activation, computed from the forward pass) is not one.

    And of the module:
      differentiated: whether a gradient of the forward pass is taken.
    """

    order: Mapping[FunctionUse, Mapping[str, int]]
    downstream: Nodes
    upstream: Nodes
    opening: Nodes
    differentiated: bool


def passes(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    products: Mapping[FunctionUse, Container[str]],
    call_values: CallValues,
) -> Passes:
    """Finds the passes of a module, in time linear in its nodes.

    Args:
      graphs: every use's graph, callers first.
      typed: every use's nodes.
      products: of each use, the nodes that compute a product or call what does.
      call_values: the tensors that pass between functions.
    """
    order = _orders(graphs, typed, call_values)
    walk = _Walk(graphs, typed, call_values, order)
    starts = [
        (use, name)
        for use, graph in graphs.items()
        for name in graph.nodes
        if name in products[use] and (use, name) not in call_values.sites
    ]
    differentiated = any(order.values()) or any(
        DIFFERENTIATED in graph.attributes for graph in graphs.values()
    )
    downstream, upstream = walk.downstream(starts), walk.upstream(starts)
    ends = [(use, name) for use, name in starts if name in order[use]]
    ends += [
        (use, name)
        for use, orders in order.items()
        for name in orders
        if typed[use][name].facts.adds_gradients
    ]
    leading = walk.upstream(ends, without=downstream)
    opening = {use: names & order[use].keys() for use, names in leading.items()}
    return Passes(order, downstream, upstream, opening, differentiated)


def _orders(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    call_values: CallValues,
) -> dict[FunctionUse, dict[str, int]]:
    """By use, the order of each node in a backward pass.

    A node has the order of its name, or of the call that runs its function if that is
    higher. TensorFlow builds outside the scope of a gradient what hands gradients on
    and what adds them up; such a node has the order of its inputs.
    """
    found: dict[FunctionUse, dict[str, int]] = {}
    called = {c: site for site in call_values.sites.values() for c in site.callees}
    for use, graph in graphs.items():
        orders = found[use] = {}
        least = 1 if GRADIENT in graph.attributes else 0
        if use in called:
            site = called[use]
            least = found[site.use].get(site.node.name, 0)
        for name in graph.order:
            own = max(gradient_scopes.depth(name), least)
            view = typed[use][name]
            if not own and orders and _hands_on(view):
                own = min((orders.get(e[0], 0) for e in _values(view)), default=0)
            if own:
                orders[name] = own
    return found


def _hands_on(view: Typed) -> bool:
    """Whether a node adds up or passes on gradients; a rewrite's casts do as well."""
    moves = view.facts.role is Role.MOVE or view.facts.kind is Kind.CAST
    return moves or view.facts.adds_gradients


def _values(view: Typed) -> list[ir.Edge]:
    """The inputs of a node that may hold values that a product gave."""
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return [edge for edge, slot in pairs if slot.type not in _NO_VALUES]


# An edge of a function, and the order of the pass that a walk is in.
_Place: TypeAlias = tuple[FunctionUse, ir.Edge, int]


class _Walk:
    """Walks a module's tensors along and against the edges, within one pass."""

    def __init__(
        self,
        graphs: Mapping[FunctionUse, ir.Graph],
        typed: Mapping[FunctionUse, Mapping[str, Typed]],
        call_values: CallValues,
        order: Mapping[FunctionUse, Mapping[str, int]],
    ) -> None:
        self._graphs = graphs
        self._typed = typed
        self._sites = call_values.sites
        self._order = order
        self._handovers = Handovers(graphs, self._sites.values())

    def downstream(self, starts: Iterable[Member]) -> Nodes:
        """The nodes that read what some nodes make, of the same order as these."""
        found: dict[FunctionUse, set[str]] = {use: set() for use in self._graphs}
        pending = [place for use, name in starts for place in self._outs(use, name)]
        passed: set[_Place] = set()  # into other functions
        while pending:
            use, edge, order = pending.pop()
            self._pass_on((use, edge, order), self._handovers.onward, passed, pending)
            orders, reached = self._order[use], found[use]
            for name, _ in self._graphs[use].readers.get(edge, ()):
                if name in reached or orders.get(name, 0) != order:
                    continue
                if not self._sites or (use, name) not in self._sites:
                    reached.add(name)
                    pending += self._outs(use, name)
        return found

    def upstream(self, starts: Iterable[Member], without: Nodes | None = None) -> Nodes:
        """The nodes that make what some nodes read, of the same order as these.

        Args:
          starts: nodes, not part of the result unless they are upstream of others.
          without: nodes that no path goes through.
        """
        found: dict[FunctionUse, set[str]] = {use: set() for use in self._graphs}
        pending = [place for use, name in starts for place in self._ins(use, name)]
        passed: set[_Place] = set()
        while pending:
            use, edge, order = pending.pop()
            self._pass_on((use, edge, order), self._handovers.back, passed, pending)
            name, reached = edge[0], found[use]
            if name in reached or name not in self._typed[use]:
                continue
            if self._order[use].get(name, 0) != order:
                continue
            if without is not None and name in without[use]:
                continue
            if not self._sites or (use, name) not in self._sites:
                reached.add(name)
                pending += self._ins(use, name)
        return found

    @staticmethod
    def _pass_on(
        place: _Place,
        links: Mapping[UseEdge, Iterable[UseEdge]],
        passed: set[_Place],
        pending: list[_Place],
    ) -> None:
        """Adds the edges of other functions that have the value of an edge, once."""
        use, edge, order = place
        for other, same in links.get((use, edge), ()) if links else ():
            if (other, same, order) not in passed:
                passed.add((other, same, order))
                pending.append((other, same, order))

    def _outs(self, use: FunctionUse, name: str) -> list[_Place]:
        order, types = self._order[use].get(name, 0), self._typed[use][name]
        made = enumerate(types.signature.made)
        return [(use, (name, i), order) for i, t in made if t not in _NO_VALUES]

    def _ins(self, use: FunctionUse, name: str) -> list[_Place]:
        order = self._order[use].get(name, 0)
        return [(use, edge, order) for edge in _values(self._typed[use][name])]
