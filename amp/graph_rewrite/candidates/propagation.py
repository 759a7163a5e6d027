"""Propagation: which eligible nodes 16 bits reach, over all functions together.

Walks the edges forwards and backwards, and from function to function as `call_values`
tells. No rule about one node and no cost may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Carried
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.candidates.running_sums import running_sums
from amp.graph_rewrite.candidates.walks import Neighbours, Walk
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
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
        if (members := list(running_sums(value, graphs, call_values)))
    }
    growing = {member: SUM for members in sums.values() for member in members}
    narrowed = without(narrowed, growing)
    narrowed = without(narrowed, _on_mixed_lists(narrowed, call_values))
    walks = {use: Walk(graphs[use], part) for use, part in narrowed.items()}
    neighbours = Neighbours(walks, call_values)
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


SUM = Reason("count", "a sum that grows over the trips of a loop")


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


# Rules by which the result of a node must not be rounded at all.
EXACT = frozenset(
    {
        *("cancels", "count", "custom", "decay", "decision", "deny", "fed", "given"),
        *("keep", "loss", "optimizer", "range", "result", "scalar", "settles"),
        *("recurrence", "solve", "state", "steep", "unguarded", "unscale"),
    }
)


def _turning(
    graphs: Mapping[FunctionUse, ir.Graph],
    found: Mapping[FunctionUse, Candidates],
    walks: Mapping[FunctionUse, Walk],
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
    walks: Mapping[FunctionUse, Walk],
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
