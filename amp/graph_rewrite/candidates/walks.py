"""How far 16 bits get in each function, and what each walk has to know of the others.

Walks the edges forwards and backwards; no node is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Carried
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.graph import bridges, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason


class Walk:
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
        self._read_shapes()
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
                rule = "move" if moves(view) else "follow"
                self.found[name] = Reason(rule, source)

    def _backward(self) -> None:
        for name in reversed(self._walked):
            view = self.typed[name]
            if name in self.found or not (moves(view) or bridges.is_any(view.node)):
                continue
            for index in range(len(view.outs)):
                reader = self.wanted((name, index))
                if reader is None and name in self._asked:
                    reader = "its loop"
                if reader is not None:
                    self.found[name] = Reason("move", reader)

    def _read_shapes(self) -> None:
        """Finds what only reads the shape of a tensor that may be 16-bit.

        So nothing needs a cast only to read its shape.
        """
        for name in self._walked:
            view = self.typed[name]
            if view.facts.kind is Kind.SHAPE and name not in self.found:
                sources = (source for source, _ in view.node.inputs)
                source = next((one for one in sources if one in self.found), None)
                if source is not None:
                    self.found[name] = Reason("follow", source)

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


class Neighbours:
    """What the walk of each use has to know of the walks of the others."""

    def __init__(
        self, walks: Mapping[FunctionUse, Walk], call_values: CallValues
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
        """The arguments of `Walk.run` for one use."""
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


def moves(view: Typed) -> bool:
    return view.row is not None and view.row.role is Role.MOVE
