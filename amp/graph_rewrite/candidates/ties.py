"""Ties: groups of nodes that must all be 16-bit or all be float32.

Finds the groups, and the candidates to refuse because of them. Whether a group becomes
16-bit is not decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.candidates.call_values import CallValues, Carried
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.graph import bridges, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.graph.op_schema import Slot
from amp.graph_rewrite.ops.op_table import Row, facts
from amp.graph_rewrite.plan import Reason

Tied: TypeAlias = Member | Carried  # a node, or a loop variable or branch result
_Typed: TypeAlias = Mapping[FunctionUse, Mapping[str, Typed]]


@dataclasses.dataclass(frozen=True, slots=True)
class Tie:
    """Nodes, loop variables and branch results that must have the same type.

    Attributes:
      members: the members of the group.
      cause: the node that needs them to have the same type.
      held: whether all of them stay float32 in any case.
    """

    members: frozenset[Tied]
    cause: str
    held: bool = False


def ties(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: _Typed,
    contexts: Mapping[FunctionUse, Context],
    call_values: CallValues,
) -> tuple[Tie, ...]:
    """The ties of a module; ties with a common member are joined to one.

    Case 1: a comparison of a tensor with values selected from it (in the gradient of a
      maximum; in kernels also in that of pooling). Rounding is monotonic, so equal
      values stay equal if both sides are rounded or none is. If only one is, they are
      equal only by chance, and the gradient is lost. A kernel that compares nothing may
      still be slow where the types differ (`Row.kernel_compares`).
    Case 2: both tensors of such a comparison are results of a function, so that they
      may be compared outside.
    Case 3: opaque bytes that one kernel leaves for another (cuDNN's reserve space),
      whose layout depends on the kernel's type. They cannot be cast, so both kernels
      and the nodes in between have the same type. If the other kernel is not in the
      module, the kernel stays float32.

    Args:
      graphs: every use's graph.
      typed: every use's nodes.
      contexts: every use's context.
      call_values: the tensors that pass between functions.
    """
    module = _Module(graphs, typed, contexts, call_values)
    found = [*_comparisons(module), *_compared_outside(module), *_opaque(module)]
    return _joined(found)


# What a walk passes at an edge, and where it goes on; None where it ends.
_Onward: TypeAlias = tuple[tuple[Tied, ...], Iterable[UseEdge]] | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Module:
    """The arguments of `ties`, and what is known of each edge that a walk has passed.

    Walks from comparisons in a row pass the same edges.
    """

    graphs: Mapping[FunctionUse, ir.Graph]
    typed: _Typed
    contexts: Mapping[FunctionUse, Context]
    call_values: CallValues
    onward: dict[tuple[UseEdge, bool], _Onward] = dataclasses.field(
        default_factory=dict
    )

    def nodes(self, asked: Callable[[Row], bool]) -> Iterator[tuple[Member, Typed]]:
        """The nodes of the ops that are asked for."""
        for use, views in self.typed.items():
            ops = {op for op in self.graphs[use].ops if asked(facts(op))}
            for name, view in views.items() if ops else ():
                if view.node.op in ops:
                    yield (use, name), view

    def view(self, place: UseEdge) -> Typed | None:
        return self.typed[place[0]].get(place[1][0])


class _Walk:
    """A walk against the edges from some tensors, through move nodes and casts.

    Args:
      module: the module.
      starts: the edges to start from.
      selects: whether to walk through nodes that select elements (`Row.selects`) too.

    Attributes:
      passed: every edge reached, with the nodes and values that it passed there (none
        for a cast or an argument).
      roots: the edges at which the walk ended.
    """

    def __init__(
        self, module: _Module, starts: Iterable[UseEdge], selects: bool
    ) -> None:
        self._module, self._selects = module, selects
        self.passed: dict[UseEdge, tuple[Tied, ...]] = {}
        self.roots: set[UseEdge] = set()
        pending = [*starts]
        while pending:
            place = pending.pop()
            if place not in self.passed:
                onward = self._known(place)
                self.passed[place], sources = onward or ((), ())
                pending += sources
                if onward is None:
                    self.roots.add(place)

    def _known(self, place: UseEdge) -> _Onward:
        known, key = self._module.onward, (place, self._selects)
        if key not in known:
            known[key] = self._onward(place)
        return known[key]

    def _onward(self, place: UseEdge) -> _Onward:
        call_values, (use, (name, _)) = self._module.call_values, place
        if place in call_values.alias:
            return (), (call_values.alias[place],)
        if place in call_values.made:
            value = call_values.made[place]
            return (value,), value.read
        view = self._module.view(place)
        if view is None:
            return None
        number = call_values.lists.get((use, name))
        if number is not None:
            return self._listed(number)
        if bridges.is_any(view.node):
            return (), _floats(use, view)
        if view.moves_values or (self._selects and view.facts.selects):
            return ((use, name),), _floats(use, view)
        return None

    def _listed(self, number: int) -> tuple[tuple[Tied, ...], Iterable[UseEdge]]:
        lists = self._module.call_values.lists
        members = tuple(member for member, other in lists.items() if other == number)
        views = ((use, self._module.typed[use][name]) for use, name in members)
        return members, [place for use, view in views for place in _floats(use, view)]


def _floats(use: FunctionUse, view: Typed) -> list[UseEdge]:
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return [(use, edge) for edge, slot in pairs if slot.type in ir.FLOATS]


def _compares(row: Row) -> bool:
    return bool(row.compares or row.kernel_compares)


def _comparisons(module: _Module) -> Iterator[Tie]:
    """Case 1 of `ties`."""
    for (use, name), view in module.nodes(_compares):
        context, row = module.contexts[use], view.facts
        kernel = () if context.xla else row.kernel_compares
        compared = [
            (use, view.node.inputs[index])
            for index in row.compares or kernel
            if index < len(view.ins) and view.ins[index].type in ir.FLOATS
        ]
        if len(compared) < 2:
            continue
        first, second = (_Walk(module, [place], selects=True) for place in compared)
        if first.passed.keys() & second.passed.keys():
            apart = first.passed.keys() ^ second.passed.keys()
            between = {
                member
                for walk in (first, second)
                for place in walk.passed.keys() & apart
                for member in walk.passed[place]
            }
            if between:
                yield Tie(frozenset({(use, name), *between}), name)


def _compared_outside(module: _Module) -> Iterator[Tie]:
    """Case 2 of `ties`: ties a node that selects to the nodes that make the values."""
    for use, graph in module.graphs.items():
        if use in module.call_values.inner:
            continue
        returned = {(use, result.edge) for result in graph.results}
        for _, (name, index) in sorted(returned, key=lambda place: place[1]):
            view = module.typed[use].get(name)
            if view is None or index or not view.facts.selects:
                continue
            walk = _Walk(module, _floats(use, view), selects=False)
            makers = {
                (use, edge[0])
                for at, edge in walk.passed.keys() & returned
                if at == use and edge[0] in module.typed[use]
            }
            if makers:
                passed = {member for found in walk.passed.values() for member in found}
                yield Tie(frozenset({(use, name), *makers, *passed}), name)


def _opaque(module: _Module) -> Iterator[Tie]:
    """Case 3 of `ties`."""
    for (use, name), view in module.nodes(lambda row: bool(row.opaque)):
        opaque = view.facts.opaque
        apart = _apart(module.contexts[use])
        for edge, slot in zip(view.node.inputs, view.ins, strict=False):
            if slot.port in opaque and slot.type in ir.FLOATS:
                yield from _from_kernel(module, (use, name), (use, edge), slot)
        seen = all(
            _reaches_kernels(module, use, (name, index))
            for index, slot in enumerate(view.outs)
            if slot.port in opaque and slot.type in ir.FLOATS
        )
        if apart and not seen:
            yield Tie(frozenset({(use, name)}), name, held=True)


def _apart(context: Context) -> bool:
    """Whether the kernels that run may have opaque bytes whose layout has a type."""
    emulated = context.policy.emulate
    return context.device_type != "CPU" and not context.xla and not emulated


def _from_kernel(
    module: _Module, reader: Member, place: UseEdge, slot: Slot
) -> Iterator[Tie]:
    """The ties of a kernel with the kernel that left it opaque bytes."""
    context, view = module.contexts[reader[0]], module.typed[reader[0]][reader[1]]
    walk = _Walk(module, [place], selects=False)
    makers = {(use, edge[0]) for use, edge in walk.roots if _leaves(module, use, edge)}
    between = {member for found in walk.passed.values() for member in found}
    known = len(makers) == len(walk.roots)
    held = not known and _apart(context)
    row = view.row
    turns = row is not None and slot.attr in row.attrs and not context.policy.emulate
    yield Tie(frozenset({reader, *makers}), reader[1], held)
    if turns:
        yield Tie(frozenset({reader, *between}), reader[1], held)
    elif between:
        yield Tie(frozenset(between), reader[1], held=True)


def _leaves(module: _Module, use: FunctionUse, edge: ir.Edge) -> bool:
    view = module.typed[use].get(edge[0])
    return (
        view is not None
        and edge[1] < len(view.outs)
        and view.outs[edge[1]].port in view.facts.opaque
    )


def _reaches_kernels(module: _Module, use: FunctionUse, edge: ir.Edge) -> bool:
    """Whether only kernels that take opaque bytes read those on an edge.

    Tensor lists and calls on the way are not followed: `_from_kernel` finds what is
    behind them from the reading kernel.
    """
    graph, typed = module.graphs[use], module.typed[use]
    fetched = module.contexts[use].fetched
    pending, seen = [edge], {edge}
    while pending:
        place = pending.pop()
        returned = any(result.edge == place for result in graph.results)
        if place[0] in fetched or (returned and use not in module.call_values.inner):
            return False
        for name, index in graph.readers.get(place, ()):
            view = typed[name]
            member = (use, name)
            if member in module.call_values.lists or member in module.call_values.sites:
                continue
            if view.moves_values:
                onward = {(name, number) for number in range(len(view.outs))} - seen
                pending += onward
                seen |= onward
            elif not (
                index < len(view.ins) and view.ins[index].port in view.facts.opaque
            ):
                return False
    return True


def _joined(found: Iterable[Tie]) -> tuple[Tie, ...]:
    """Joins ties with common members, by union-find."""
    above: dict[Tied, Tied] = {}

    def top(member: Tied) -> Tied:
        while (parent := above.setdefault(member, member)) != member:
            above[member] = above[parent]
            member = parent
        return member

    asked = [(tie, list(tie.members)) for tie in found if tie.members]
    for _, (first, *others) in asked:
        for other in others:
            above[top(other)] = top(first)
    groups: dict[Tied, Tie] = {}
    for tie, (first, *_) in asked:
        before = groups.get(top(first), Tie(frozenset(), tie.cause))
        groups[top(first)] = Tie(
            before.members | tie.members, before.cause, before.held or tie.held
        )
    return tuple(groups.values())


def held_by_ties(
    tied: Iterable[Tie],
    found: Mapping[FunctionUse, Candidates],
    turning: Container[Carried],
) -> dict[Member, Reason]:
    """The candidates to refuse because another member of their tie stays float32.

    Members that are 16-bit in the graph as given do not count.

    Args:
      tied: the ties of a module.
      found: the candidates of each use after propagation.
      turning: the loop variables and branch results that may be 16-bit.
    """
    held: dict[Member, Reason] = {}
    for tie in tied:
        free = [m for m in tie.members if not isinstance(m, Carried)]
        allowed = [(use, name) for use, name in free if name in found[use].allowed]
        if not allowed:
            continue
        cause = tie.cause if tie.held else _held_member(tie, found, turning)
        if cause:
            held |= dict.fromkeys(sorted(allowed), Reason("tied", cause))
    return held


def _held_member(
    tie: Tie,
    found: Mapping[FunctionUse, Candidates],
    turning: Container[Carried],
) -> str:
    """A member of a tie that stays float32, "" if all may be 16-bit."""
    names = set()
    for member in tie.members:
        if isinstance(member, Carried):
            if member not in turning:
                names.add(member.site.node.name)
        elif member[1] in found[member[0]].refused:
            names.add(member[1])
    return min(names, default="")
