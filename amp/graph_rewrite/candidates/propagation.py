"""Propagation: which eligible nodes 16 bits reach, over all functions together.

Walks the edges forwards and backwards, and from function to function as `call_values`
tells. No rule about one node and no cost may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.call_values import (
    CallValues,
    Carried,
    Member,
    UseEdge,
)
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.candidates.running_sums import running_sums
from amp.graph_rewrite.graph import bridges, ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.plan import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class Propagated:
    """The result of propagation.

    Attributes:
      found: the candidates of each use.
      turning: the loop variables and branch results that may be 16-bit.
    """

    found: Mapping[FunctionUse, Candidates]
    turning: frozenset[Carried]


def propagate(
    graphs: Mapping[FunctionUse, ir.Graph],
    narrowed: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
) -> Propagated:
    """Keeps as candidates the eligible nodes that 16 bits reach.

    These are compute nodes, the eligible nodes downstream of them on paths of eligible
    nodes, and the move nodes on a path into one of these. Nodes that are 16-bit already
    and casts between the types count as eligible on a path, so that a second rewrite
    reaches the same nodes as the first. Walks all functions, each in linear time, until
    nothing changes.

    Args:
      graphs: every use's graph.
      narrowed: the eligible nodes of every use.
      call_values: the tensors that pass between functions.
    """
    sums = {
        value: members
        for value in call_values.carried
        if (members := list(running_sums(value, graphs)))
    }
    growing = {member: SUM for members in sums.values() for member in members}
    narrowed = without(narrowed, growing)
    narrowed = without(narrowed, _on_mixed_lists(narrowed, call_values))
    walks = {use: _Walk(graphs[use], part) for use, part in narrowed.items()}
    neighbours = _Neighbours(walks, call_values)
    changed = True
    while changed:
        changed = False
        for use, walk in walks.items():
            changed |= walk.run(*neighbours.of(use))
    found = {}
    for use, part in narrowed.items():
        allowed = {n: r for n, r in walks[use].found.items() if n in part.allowed}
        left = {n: r for n, r in part.allowed.items() if n not in allowed}
        found[use] = dataclasses.replace(
            part, allowed=allowed, refused={**part.refused, **left}
        )
    return Propagated(found, _turning(graphs, found, walks, call_values, sums))


SUM = Reason("count", "a sum that grows on every trip of a loop")


def _on_mixed_lists(
    narrowed: Mapping[FunctionUse, Candidates], call_values: CallValues
) -> dict[Member, Reason]:
    """Refuses the ops of each tensor list that has an op that may not be 16-bit.

    So it does those of a loop variable of TensorFlow 1.
    """
    unlisted = Reason("list", "an op that is no list op handles it")
    reasons = dict.fromkeys(call_values.open, unlisted)
    for (use, name), number in call_values.lists.items():
        if name in narrowed[use].refused:
            reason = Reason("list", f"{name} works on the same list")
            if number in call_values.variables:
                reason = Reason("loop", f"{name} is of the same loop variable")
            reasons.setdefault(number, reason)
    return {
        member: reasons[number]
        for member, number in call_values.lists.items()
        if number in reasons
    }


def without(
    narrowed: Mapping[FunctionUse, Candidates], refused: Mapping[Member, Reason]
) -> dict[FunctionUse, Candidates]:
    """The candidates of each use with some of them moved to its `refused`."""
    moved: dict[FunctionUse, dict[str, Reason]] = {}
    for (use, name), reason in refused.items():
        if name in narrowed[use].allowed:
            moved.setdefault(use, {})[name] = reason
    after = dict(narrowed)
    for use, gone in moved.items():
        part = narrowed[use]
        left = {name: r for name, r in part.allowed.items() if name not in gone}
        after[use] = dataclasses.replace(
            part, allowed=left, refused={**part.refused, **gone}
        )
    return after


class _Walk:
    """The nodes of one graph that 16 bits reach, as found so far."""

    def __init__(self, graph: ir.Graph, part: Candidates) -> None:
        self.graph = graph
        self.typed = part.typed
        self.found: dict[str, Reason] = {}
        self._after: set[str] = set()  # those downstream of a product
        self.entries: frozenset[ir.Edge] = frozenset()
        self.exits: frozenset[ir.Edge] = frozenset()
        self._forced: frozenset[str] | None = None  # not run yet
        self._asked: frozenset[str] = frozenset()
        self._walked = [
            name
            for name in graph.order
            if name in part.allowed
            or name in part.already
            or bridges.is_any(part.typed[name].node)
        ]

    def run(
        self,
        entries: frozenset[ir.Edge],
        exits: frozenset[ir.Edge],
        forced: frozenset[str],
        asked: frozenset[str],
    ) -> bool:
        """Walks the graph again if the arguments changed; returns whether they did.

        Args:
          entries: edges that are downstream of a product in another function.
          exits: edges that a reached node in another function reads.
          forced: nodes on tensor lists that are reached in another function, and of
            loop variables that a node elsewhere in the loop is downstream of a product.
          asked: nodes of loop variables that are reached elsewhere in the loop.
        """
        before = (self.entries, self.exits, self._forced, self._asked)
        if (entries, exits, forced, asked) == before:
            return False
        self.entries, self.exits = entries, exits
        self._forced, self._asked = forced, asked
        self._forward(forced)
        self._backward()
        return True

    def _forward(self, forced: frozenset[str]) -> None:
        after, entries = self._after, self.entries
        for name in self._walked:
            if name in after:
                continue
            view = self.typed[name]
            row = view.row
            if row is not None and row.role is Role.COMPUTE:
                after.add(name)
                self.found[name] = Reason("compute", row.why)
                continue
            source = next(
                (e[0] for e in view.node.inputs if e[0] in after or e in entries), None
            )
            if source is None and name in forced:
                source = "its list"
            if source is not None:
                after.add(name)
                rule = "move" if _moves(view) else "follow"
                self.found[name] = Reason(rule, source)

    def _backward(self) -> None:
        for name in reversed(self._walked):
            view = self.typed[name]
            if name in self.found or not (_moves(view) or bridges.is_any(view.node)):
                continue
            for index in range(len(view.outs)):
                reader = self.wanted((name, index))
                if reader is None and name in self._asked:
                    reader = "its loop"
                if reader is not None:
                    self.found[name] = Reason("move", reader)

    def reached(self, edge: ir.Edge) -> bool:
        """Whether an edge is downstream of a product."""
        return edge[0] in self._after or edge in self.entries

    def follows(self, name: str) -> bool:
        """Whether a node is reached and downstream of a product."""
        return name in self._after

    def wanted(self, edge: ir.Edge) -> str | None:
        """A reached node that reads an edge, None if there is none."""
        if edge in self.exits:
            return "a function"
        readers = self.graph.readers.get(edge, ())
        return next((reader for reader, _ in readers if reader in self.found), None)


class _Neighbours:
    """What the walk of each use has to know of the walks of the others."""

    def __init__(
        self, walks: Mapping[FunctionUse, _Walk], call_values: CallValues
    ) -> None:
        self._walks = walks
        self._inward: dict[FunctionUse, list[tuple[ir.Edge, UseEdge]]] = {}
        self._outward: dict[FunctionUse, list[tuple[ir.Edge, UseEdge]]] = {}
        for inner, outer in call_values.alias.items():
            self._inward.setdefault(inner[0], []).append((inner[1], outer))
            self._outward.setdefault(outer[0], []).append((outer[1], inner))
        self._carried: dict[FunctionUse, list[Carried]] = {}
        for value in call_values.carried:
            for use in {use for use, _ in (*value.made, *value.read)}:
                self._carried.setdefault(use, []).append(value)
        self._lists: dict[FunctionUse, list[tuple[str, int]]] = {}
        self._members: dict[int, list[Member]] = {}
        self._variables = call_values.variables
        for (use, name), number in call_values.lists.items():
            self._lists.setdefault(use, []).append((name, number))
            self._members.setdefault(number, []).append((use, name))

    def of(
        self, use: FunctionUse
    ) -> tuple[frozenset[ir.Edge], frozenset[ir.Edge], frozenset[str], frozenset[str]]:
        """The arguments of `_Walk.run` for one use."""
        reached, wanted = self._reached, self._wanted
        entries = {edge for edge, at in self._inward.get(use, ()) if reached(at)}
        exits = {edge for edge, at in self._outward.get(use, ()) if wanted(at)}
        for value in self._carried.get(use, ()):
            if any(map(reached, value.read)):
                entries.update(edge for at, edge in value.made if at == use)
            if any(map(wanted, value.made)):
                exits.update(edge for at, edge in value.read if at == use)
        numbers = {number for _, number in self._lists.get(use, ())}
        asked = {number for number in numbers if self._list_reached(number)}
        forced = {k for k in asked if k not in self._variables or self._follows(k)}
        return (
            frozenset(entries),
            frozenset(exits),
            frozenset(name for name, k in self._lists.get(use, ()) if k in forced),
            frozenset(name for name, k in self._lists.get(use, ()) if k in asked),
        )

    def _reached(self, place: UseEdge) -> bool:
        return self._walks[place[0]].reached(place[1])

    def _wanted(self, place: UseEdge) -> bool:
        return self._walks[place[0]].wanted(place[1]) is not None

    def _list_reached(self, number: int) -> bool:
        members = self._members[number]
        return any(name in self._walks[use].found for use, name in members)

    def _follows(self, number: int) -> bool:
        members = self._members[number]
        return any(self._walks[use].follows(name) for use, name in members)


# Rules by which the result of a node must not be rounded at all.
EXACT = frozenset(
    {
        *("cancels", "count", "decay", "decision", "deny", "fed", "keep", "loss"),
        *("range", "result", "scalar", "state", "steep", "unscale"),
    }
)


def _turning(
    graphs: Mapping[FunctionUse, ir.Graph],
    found: Mapping[FunctionUse, Candidates],
    walks: Mapping[FunctionUse, _Walk],
    call_values: CallValues,
    sums: Container[Carried],
) -> frozenset[Carried]:
    """The loop variables and branch results that may be 16-bit.

    Conditions: the nodes that return the value are candidates, the loop's condition
    does not read it, it is no running sum, and its initial value need not be exact.
    Starts from all of them and removes those that fail until nothing changes, since one
    loop may return what another one carries.
    """
    left = {
        value
        for value in call_values.carried
        if value not in sums and _may_round(value, graphs, found, walks)
    }
    while True:
        gone = {
            value
            for value in left
            for place in value.returned
            if not _made_low(call_values.source(place), found, call_values, left)
        }
        if not gone:
            return frozenset(left)
        left -= gone


def _may_round(
    value: Carried,
    graphs: Mapping[FunctionUse, ir.Graph],
    found: Mapping[FunctionUse, Candidates],
    walks: Mapping[FunctionUse, _Walk],
) -> bool:
    touched = any(walks[use].reached(edge) for use, edge in value.read)
    touched |= any(walks[use].wanted(edge) is not None for use, edge in value.made)
    if not touched:
        return False
    if value.site.call.loop:
        cond = graphs[value.site.callees[0]]
        if cond.readers.get((cond.args[value.index].name, 0)):
            return False
    for use, (name, _) in value.read:
        reason = found[use].refused.get(name)
        if reason is not None and reason.rule in EXACT:
            return False
    return True


def _made_low(
    place: UseEdge,
    found: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
    turning: set[Carried],
) -> bool:
    """Whether the tensor on an edge may be 16-bit where it is made."""
    use, edge = place
    if place in call_values.made:
        return call_values.made[place] in turning
    part = found[use]
    return edge[0] in part.allowed or edge[0] in part.already


def _moves(view: Typed) -> bool:
    return view.row is not None and view.row.role is Role.MOVE
