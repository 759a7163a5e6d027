"""Moves of values that no 16-bit arithmetic made, to readers that need them exactly.

Follows values along the edges, from function to function as `call_values` tells. No
cost may enter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, Site, UseEdge
from amp.graph_rewrite.graph.op_schema import Slot
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Reason

# What a move hands on: a tensor, or a list of them.
_VALUES = frozenset({ir.FLOAT, ir.VARIANT})


def given_values(
    graphs: Mapping[FunctionUse, ir.Graph],
    contexts: Mapping[FunctionUse, Context],
    eligible: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
) -> dict[Member, Reason]:
    """Refuses moves by which a given value would come rounded where it must not.

    A batch may hold features and, in a column beside them, an id: what splits it moves
    values to a product, which may round them, and to a cast to integers, which must
    not. *Given* is what an argument, a variable or a node that stays float32 gives, and
    what moves hand on of it; constants are not. A reader is *exact* if it is no
    candidate: it stays float32, and so is a result. A move on the way from one to the
    other stays float32, and the product's cast stands behind it.

    Arithmetic is not looked at: its results may be rounded, whoever reads them.

    Args:
      graphs: every use's graph.
      contexts: of each use.
      eligible: its candidates.
      call_values: the tensors that pass between functions.
    """
    flow = _Flow(graphs, eligible, call_values)
    given = flow.onward(_given(graphs, eligible, call_values))
    exact = flow.back(_exact(graphs, contexts, eligible, call_values))
    refused: dict[Member, Reason] = {}
    for use, name in flow.moves():
        for edge in flow.made(use, name):
            if edge in given and edge in exact:
                refused[use, name] = Reason("given", exact[edge])
    return refused


class _Flow:
    """The ways that values take unchanged.

    Args:
      graphs, eligible, call_values: as of `given_values`.
    """

    def __init__(
        self,
        graphs: Mapping[FunctionUse, ir.Graph],
        eligible: Mapping[FunctionUse, Candidates],
        call_values: CallValues,
    ) -> None:
        self._graphs = graphs
        self._eligible = eligible
        self._links: dict[UseEdge, list[UseEdge]] = defaultdict(list)
        self._back: dict[UseEdge, list[UseEdge]] = defaultdict(list)
        for before, after in _links(graphs, call_values):
            self._links[before].append(after)
            self._back[after].append(before)

    def moves(self) -> Iterator[Member]:
        """The candidates that move values and compute nothing."""
        for use, part in self._eligible.items():
            for name in part.allowed:
                if part.typed[name].moves_values:
                    yield use, name

    def made(self, use: FunctionUse, name: str) -> list[UseEdge]:
        """The edges on which a node gives values."""
        view = self._eligible[use].typed[name]
        outs = enumerate(view.outs)
        return [(use, (name, i)) for i, slot in outs if _is_value(view, slot)]

    def onward(self, starts: Iterable[UseEdge]) -> set[UseEdge]:
        """The edges that have what is on some edges, these among them."""
        found = set(starts)
        pending = [*found]
        while pending:
            use, edge = pending.pop()
            after = [*self._links.get((use, edge), ())]
            part = self._eligible[use]
            for name, index in self._graphs[use].readers.get(edge, ()):
                if _passes(part, name) and _takes(part.typed[name], index):
                    after += self.made(use, name)
            fresh = set(after) - found
            found |= fresh
            pending += fresh
        return found

    def back(self, starts: Mapping[UseEdge, str]) -> dict[UseEdge, str]:
        """The edges whose values come to some edges, with who reads those."""
        found = dict(starts)
        pending = [*found]
        while pending:
            use, edge = place = pending.pop()
            before = [*self._back.get(place, ())]
            part, (name, index) = self._eligible[use], edge
            view = part.typed.get(name)
            if view is not None and _gives(view, index) and _passes(part, name):
                pairs = enumerate(view.node.inputs)
                before += [(use, one) for i, one in pairs if _takes(view, i)]
            fresh = [one for one in before if one not in found]
            found |= dict.fromkeys(fresh, found[place])
            pending += fresh
        return found


def _passes(part: Candidates, name: str) -> bool:
    """Whether a node hands on what it takes, in whatever type it is.

    A loop of TensorFlow 1 goes on with what its body gives: that a variable begins with
    another value, often zeros, is left out.
    """
    view = part.typed[name]
    if view.facts.in_frames:
        enters = view.facts.kind is Kind.ENTER
        return not enters or view.node.flag("is_constant")
    return name not in part.refused and view.moves_values


def _takes(view: Typed, index: int) -> bool:
    """Whether a node moves the value of an input."""
    return index < len(view.ins) and _is_value(view, view.ins[index])


def _gives(view: Typed, index: int) -> bool:
    """Whether an output of a node is a value, and no flow."""
    return index < len(view.outs) and _is_value(view, view.outs[index])


def _is_value(view: Typed, slot: Slot) -> bool:
    """Whether a move hands on what is at a slot; a flow only orders the ops."""
    return slot.type in _VALUES and slot.port not in view.facts.flows


def _given(
    graphs: Mapping[FunctionUse, ir.Graph],
    eligible: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
) -> Iterator[UseEdge]:
    sites = call_values.sites
    for use, part in eligible.items():
        if use not in call_values.inner:
            args = graphs[use].args
            yield from ((use, (a.name, 0)) for a in args if a.type == ir.FLOAT)
        for name in part.refused:
            view = part.typed[name]
            if view.facts.kind is Kind.CONSTANT or _is_neither(
                (use, name), view, sites
            ):
                continue
            for index, slot in enumerate(view.outs):
                if slot.type == ir.FLOAT and slot.port not in view.facts.flows:
                    yield use, (name, index)


def _exact(
    graphs: Mapping[FunctionUse, ir.Graph],
    contexts: Mapping[FunctionUse, Context],
    eligible: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
) -> dict[UseEdge, str]:
    """The edges that are read exactly, each with a reader."""
    found: dict[UseEdge, str] = {}
    sites = call_values.sites
    for use, part in eligible.items():
        if use not in call_values.inner:
            for result in graphs[use].results:
                found.setdefault((use, result.edge), f"result {result.name}")
        for name in sorted(contexts[use].fetched & part.typed.keys()):
            for index in range(len(part.typed[name].outs)):
                found.setdefault((use, (name, index)), f"{name}, which is fetched")
        for name in part.refused:
            view = part.typed[name]
            if view.facts.kind is Kind.SHAPE or _is_neither((use, name), view, sites):
                continue
            for edge, slot in zip(view.node.inputs, view.ins, strict=False):
                if slot.type == ir.FLOAT and slot.port not in view.facts.flows:
                    found.setdefault((use, edge), name)
    return found


def _is_neither(member: Member, view: Typed, sites: Container[Member]) -> bool:
    """Whether a node that stays float32 only hands on, and gives and reads nothing.

    That are calls, loops of TensorFlow 1, and casts from or to 16 bits, as a rewrite
    adds them.
    """
    types = view.signature.types
    bridge = view.facts.kind is Kind.CAST and not ir.LOW.isdisjoint(types)
    return bridge or view.facts.in_frames or member in sites


def _links(
    graphs: Mapping[FunctionUse, ir.Graph], call_values: CallValues
) -> Iterator[tuple[UseEdge, UseEdge]]:
    """Edges of different functions that have the same value: one gives it to the other.

    A loop variable has what its body returns; that it begins with another value, often
    zeros, is left out. A list has both.
    """
    for arg, source in call_values.alias.items():
        yield source, arg
    for value in call_values.carried:
        for returned in value.returned:
            yield from ((returned, made) for made in value.made)
    for site in call_values.sites.values():
        yield from _of_lists(site, graphs)


def _of_lists(
    site: Site, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[tuple[UseEdge, UseEdge]]:
    for giver in site.call.givers(site.callees):
        for index, result in enumerate(graphs[giver].results):
            if result.type != ir.VARIANT:
                continue
            to = [(site.use, (site.node.name, index))]
            begins: list[UseEdge] = []
            if site.call.loop:
                begins = [(site.use, site.node.inputs[index])]
                to += [
                    (callee, (graphs[callee].args[index].name, 0))
                    for callee in site.callees
                ]
            for before in ((giver, result.edge), *begins):
                yield from ((before, after) for after in to)
