"""Forward and backward passes: which pass a node is in, and where products are in it.

A pass is the nodes of one order of differentiation: 0 for the forward pass, 1 for the
gradient of it, 2 for a gradient of that. No rule about precision may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Member, UseEdge
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import gradient_scopes, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site
from amp.graph_rewrite.ops.op_table import Kind, Role

# The tensors of these types hold no value that a product gave.
_NO_VALUES = ir.INTEGERS | {ir.BOOL, ir.STRING, ir.RESOURCE}
# Attributes that TensorFlow gives a function whose gradient it takes from outside, and
# the function that computes this gradient.
_DIFFERENTIATED, _GRADIENT = "backward_function_name", "forward_function_name"


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
    """The passes of a module.

    Attributes:
      order: of each node that belongs to a backward pass, the order of that pass; the
        others are in the forward pass.
      differentiated: whether a gradient of the forward pass is taken.
      downstream: the nodes downstream of a product of their own pass, by a path of
        nodes of this pass.
      upstream: the nodes upstream of such a product in the same sense.
      opening: the nodes of a backward pass that lead to one of its first products, or
        past all products to a sum of gradients. What only a node behind a product reads
        (the derivative of an activation, computed from the forward pass) is not one.
    """

    order: Mapping[Member, int]
    differentiated: bool
    downstream: frozenset[Member]
    upstream: frozenset[Member]
    opening: frozenset[Member]


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
    differentiated = bool(order) or any(
        _DIFFERENTIATED in graph.attributes for graph in graphs.values()
    )
    downstream = walk.downstream(starts)
    ends = [at for at in starts if at in order]
    ends += [at for at in order if typed[at[0]][at[1]].facts.adds_gradients]
    opening = walk.upstream(ends, without=downstream) & order.keys()
    upstream = walk.upstream(starts)
    return Passes(order, differentiated, downstream, upstream, opening)


def _orders(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    call_values: CallValues,
) -> dict[Member, int]:
    """The order of each node in a backward pass.

    A node has the order of its name, or of the call that runs its function if that is
    higher. TensorFlow builds outside the scope of a gradient what hands gradients on
    and what adds them up; such a node has the order of its inputs.
    """
    found: dict[Member, int] = {}
    called = {c: site for site in call_values.sites.values() for c in site.callees}
    for use, graph in graphs.items():
        least = 1 if _GRADIENT in graph.attributes else 0
        if use in called:
            site = called[use]
            least = found.get((site.use, site.node.name), 0)
        for name in graph.order:
            view = typed[use][name]
            own = max(gradient_scopes.depth(name), least)
            if not own and _hands_on(view):
                edges = _values(view)
                own = min((found.get((use, edge[0]), 0) for edge in edges), default=0)
            if own:
                found[use, name] = own
    return found


def _hands_on(view: Typed) -> bool:
    """Whether a node adds up or passes on gradients; a rewrite's casts do as well."""
    moves = view.facts.role is Role.MOVE or view.facts.kind is Kind.CAST
    return moves or view.facts.adds_gradients


def _values(view: Typed) -> list[ir.Edge]:
    """The inputs of a node that may hold values that a product gave."""
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return [edge for edge, slot in pairs if slot.type not in _NO_VALUES]


class _Walk:
    """Walks a module's tensors along and against the edges, within one pass."""

    def __init__(
        self,
        graphs: Mapping[FunctionUse, ir.Graph],
        typed: Mapping[FunctionUse, Mapping[str, Typed]],
        call_values: CallValues,
        order: Mapping[Member, int],
    ) -> None:
        self._graphs = graphs
        self._typed = typed
        self._sites = call_values.sites
        self._order = order
        self._onward: dict[UseEdge, list[UseEdge]] = {}
        for before, after in _passed_on(graphs, self._sites.values()):
            self._onward.setdefault(before, []).append(after)
        self._back: dict[UseEdge, list[UseEdge]] = {}
        for before, afters in self._onward.items():
            for after in afters:
                self._back.setdefault(after, []).append(before)

    def downstream(self, starts: Iterable[Member]) -> frozenset[Member]:
        """The nodes that read what some nodes make, of the same order as these."""
        found: set[Member] = set()
        pending = [(p, self._order.get(s, 0)) for s in starts for p in self._outs(s)]
        seen = set(pending)
        while pending:
            place, order = pending.pop()
            use, edge = place
            after = list(self._onward.get(place, ()))
            for name, _ in self._graphs[use].readers.get(edge, ()):
                reader = (use, name)
                if reader in found or self._order.get(reader, 0) != order:
                    continue
                if reader not in self._sites:
                    found.add(reader)
                    after += self._outs(reader)
            fresh = {(each, order) for each in after} - seen
            seen |= fresh
            pending += fresh
        return frozenset(found)

    def upstream(
        self, starts: Iterable[Member], without: Container[Member] = ()
    ) -> frozenset[Member]:
        """The nodes that make what some nodes read, of the same order as these.

        Args:
          starts: nodes, not part of the result unless they are upstream of others.
          without: nodes that no path goes through.
        """
        found: set[Member] = set()
        pending = [(p, self._order.get(s, 0)) for s in starts for p in self._ins(s)]
        seen = set(pending)
        while pending:
            place, order = pending.pop()
            use, (name, _) = place
            before = list(self._back.get(place, ()))
            maker = (use, name)
            if (
                name in self._typed[use]
                and maker not in found
                and maker not in self._sites
                and maker not in without
                and self._order.get(maker, 0) == order
            ):
                found.add(maker)
                before += self._ins(maker)
            fresh = {(each, order) for each in before} - seen
            seen |= fresh
            pending += fresh
        return frozenset(found)

    def _outs(self, member: Member) -> list[UseEdge]:
        use, name = member
        slots = enumerate(self._typed[use][name].outs)
        return [(use, (name, i)) for i, slot in slots if slot.type not in _NO_VALUES]

    def _ins(self, member: Member) -> list[UseEdge]:
        use, name = member
        return [(use, edge) for edge in _values(self._typed[use][name])]


def _passed_on(
    graphs: Mapping[FunctionUse, ir.Graph], sites: Iterable[Site]
) -> Iterator[tuple[UseEdge, UseEdge]]:
    """The edges of different functions, or of two trips, that hold the same values.

    Yields the edge that gives the value, and the one that is read.
    """
    for site in sites:
        given = [(site.use, edge) for edge in site.node.inputs[site.call.skip :]]
        for callee in site.callees:
            for place, arg in zip(given, graphs[callee].args, strict=True):
                if arg.type not in _NO_VALUES:
                    yield place, (callee, (arg.name, 0))
        givers = site.callees[-1:] if site.call.loop else site.callees
        for giver in givers:
            for index, result in enumerate(graphs[giver].results):
                if result.type in _NO_VALUES:
                    continue
                made = (giver, result.edge)
                yield made, (site.use, (site.node.name, index))
                if site.call.loop:
                    yield given[index], (site.use, (site.node.name, index))
                    yield made, (giver, (graphs[giver].args[index].name, 0))
