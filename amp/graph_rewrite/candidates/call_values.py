"""Tensors that pass between functions: arguments, loop variables and tensor lists.

Finds which edges of different functions are the same tensor or have to have the same
type, and which nodes of a loop of TensorFlow 1 have. No choice of that type may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import frames, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, Site, UseEdge


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A float32 loop variable, or a float32 result of a branch.

    All its edges have to have the same type.

    Attributes:
      site: the loop or branch.
      index: the number of the result.
      begins: the edge with a loop variable's initial value, None for a branch.
      returned: the edge that the loop's body, or each branch function, returns.
      made: the edges on which it is read: the output of the loop or branch node and,
        for a loop, the argument of each function.
    """

    site: Site
    index: int
    begins: UseEdge | None
    returned: tuple[UseEdge, ...]
    made: tuple[UseEdge, ...]

    @property
    def read(self) -> tuple[UseEdge, ...]:
        """All edges that provide its value: the initial and the returned ones."""
        return self.returned if self.begins is None else (self.begins, *self.returned)


class UseVariable(NamedTuple):
    """A loop variable of TensorFlow 1 with a floating type, in a use of a function."""

    use: FunctionUse
    variable: frames.LoopVariable


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CallValues:
    """The tensors that pass between the functions of a module.

    Attributes:
      sites: the calls whose argument and result types may change, by (use, node).
      alias: for each argument edge that always is a tensor of the caller, that tensor:
        arguments of branches and invariant arguments of loops.
      carried: the other float32 loop variables, and the float32 results of branches.
      made: `carried` by the edges in `Carried.made`.
      returns: `carried` by (use, result number) of the functions that return them.
      inner: the uses that the sites call.
      passed: the arguments in `alias`, as (last function of the site, number).
      unread: those of them that no function of the site reads.
      lists: for each node on a tensor list (a TensorArray, a stack), or on a loop
        variable of TensorFlow 1, the number of the list or variable.
      open: the lists that are also used by other nodes than list ops and `sites`.
      variables: the loop variables of TensorFlow 1 by their number in `lists`.
    """

    sites: Mapping[Member, Site]
    alias: Mapping[UseEdge, UseEdge]
    carried: tuple[Carried, ...]
    made: Mapping[UseEdge, Carried]
    returns: Mapping[tuple[FunctionUse, int], Carried]
    inner: frozenset[FunctionUse]
    passed: frozenset[tuple[FunctionUse, int]]
    unread: frozenset[tuple[FunctionUse, int]]
    lists: Mapping[Member, int]
    open: frozenset[int]
    variables: Mapping[int, UseVariable]

    def source(self, place: UseEdge) -> UseEdge:
        """The edge where a tensor is made, following `alias` out of functions."""
        while place in self.alias:
            place = self.alias[place]
        return place

    def passes(self, site: Site, index: int) -> bool:
        """Whether input `index` of a site's node is in `alias` inside its functions."""
        return (site.callees[-1], index - site.call.skip) in self.passed

    def is_read(self, site: Site, index: int) -> bool:
        """Whether a function of the site reads input `index`, which `passes`."""
        return (site.callees[-1], index - site.call.skip) not in self.unread


def cross(
    graphs: Mapping[FunctionUse, ir.Graph],
    sites: Mapping[Member, Site],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    contexts: Mapping[FunctionUse, Context],
) -> CallValues:
    """Finds the tensors that pass between functions.

    A call that is fed, fetched or downstream of an unscale marker keeps its types and
    is left out.

    Args:
      graphs: every use's graph.
      sites: the calls whose types may change (of `calls.sites`).
      typed: every use's nodes.
      contexts: every use's context.
    """
    usable = {
        (use, name): site
        for (use, name), site in sites.items()
        if name not in contexts[use].behind | contexts[use].fed | contexts[use].fetched
    }
    alias: dict[UseEdge, UseEdge] = {}
    carried: list[Carried] = []
    passed: set[tuple[FunctionUse, int]] = set()
    for site in usable.values():
        for index, edge in _passed(site):
            if not site.call.loop or _returns_unchanged(
                graphs[site.callees[-1]], index
            ):
                passed.add((site.callees[-1], index))
                for callee in site.callees:
                    arg = graphs[callee].args[index]
                    alias[callee, (arg.name, 0)] = (site.use, edge)
        carried += _carried(site, graphs)
    lists, open_lists = _lists(graphs, usable, typed)
    variables = dict(enumerate(_variables(graphs, typed), len(set(lists.values()))))
    for number, (use, variable) in variables.items():
        lists |= dict.fromkeys(((use, name) for name in variable.nodes), number)
    returned = {place for value in carried for place in value.returned}
    return CallValues(
        sites=usable,
        alias=alias,
        carried=tuple(carried),
        made={place: value for value in carried for place in value.made},
        returns={
            (use, value.index): value for value in carried for use, _ in value.returned
        },
        inner=frozenset(c for site in usable.values() for c in site.callees),
        passed=frozenset(passed),
        unread=frozenset(_unread(usable.values(), passed, graphs, returned)),
        lists=lists,
        open=open_lists,
        variables=variables,
    )


def _variables(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> Iterator[UseVariable]:
    for use, graph in graphs.items():
        for variable in frames.loop_variables(graph):
            if typed[use][variable.merge].outs[0].type in ir.FLOATS:
                yield UseVariable(use, variable)


def _passed(site: Site) -> Iterator[tuple[int, ir.Edge]]:
    return enumerate(site.node.inputs[site.call.skip :])


def _unread(
    sites: Iterable[Site],
    passed: Container[tuple[FunctionUse, int]],
    graphs: Mapping[FunctionUse, ir.Graph],
    returned: Container[UseEdge],
) -> Iterator[tuple[FunctionUse, int]]:
    """The arguments that are passed, and no function of their site has a use for."""
    for site in sites:
        last = site.callees[-1]
        for number in range(len(graphs[last].args)):
            if (last, number) not in passed:
                continue
            places = [(c, (graphs[c].args[number].name, 0)) for c in site.callees]
            if not any(
                graphs[callee].readers.get(edge) or (callee, edge) in returned
                for callee, edge in places
            ):
                yield last, number


def _returns_unchanged(body: ir.Graph, index: int) -> bool:
    return body.results[index].edge == (body.args[index].name, 0)


def _carried(site: Site, graphs: Mapping[FunctionUse, ir.Graph]) -> Iterator[Carried]:
    inner = [graphs[callee] for callee in site.callees]
    givers = site.call.givers(inner)
    for index in range(len(inner[-1].results)):
        if any(graph.results[index].type != ir.FLOAT for graph in givers):
            continue
        if site.call.loop and _returns_unchanged(inner[-1], index):
            continue
        returned = tuple(
            (callee, graph.results[index].edge)
            for callee, graph in zip(site.callees, inner, strict=True)
            if graph in givers
        )
        made = [(site.use, (site.node.name, index))]
        begins = None
        if site.call.loop:
            begins = (site.use, site.node.inputs[index])
            made += [
                (callee, (graph.args[index].name, 0))
                for callee, graph in zip(site.callees, inner, strict=True)
            ]
        yield Carried(site, index, begins, returned, tuple(made))


class _Union:
    """Union-find over edges, with path halving."""

    def __init__(self) -> None:
        self._above: dict[UseEdge, UseEdge] = {}

    def find(self, place: UseEdge) -> UseEdge:
        above = self._above
        while (parent := above.setdefault(place, place)) != place:
            above[place] = above[parent]
            place = parent
        return place

    def join(self, *places: UseEdge) -> None:
        first = self.find(places[0])
        for place in places[1:]:
            self._above[self.find(place)] = first


def _lists(
    graphs: Mapping[FunctionUse, ir.Graph],
    sites: Mapping[Member, Site],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> tuple[dict[Member, int], frozenset[int]]:
    """The list number of every node on a tensor list, and the numbers in `open`.

    Variants that one node or call passes on to another are one list.
    """
    handles = _handles(typed)
    union = _Union()
    members: dict[Member, UseEdge] = {}
    other_uses: list[UseEdge] = []
    for site in sites.values():
        _join_site(site, graphs, union, handles)
    for use, views in typed.items():
        for name, view in views.items():
            if handles.isdisjoint(view.signature.types):
                continue
            pairs = zip(view.node.inputs, view.ins, strict=False)
            ins = [(use, e) for e, slot in pairs if slot.type in handles]
            outs = [
                (use, (name, index))
                for index, slot in enumerate(view.outs)
                if slot.type in handles
            ]
            if view.row is not None and view.row.same_list:
                members[use, name] = (ins + outs)[0]
                union.join(*ins, *outs)
            elif view.facts.in_frames:
                union.join(*ins, *outs)
            elif view.facts.hands_on_list:
                for before, after in zip(ins, outs, strict=False):
                    union.join(before, after)
            elif (use, name) not in sites:
                other_uses += ins + outs
    inner = {callee for site in sites.values() for callee in site.callees}
    for use, graph in graphs.items():
        if use not in inner:
            other_uses += [(use, (arg.name, 0)) for arg in graph.args]
            other_uses += [(use, result.edge) for result in graph.results]
    numbers: dict[UseEdge, int] = {}
    lists = {
        member: numbers.setdefault(union.find(place), len(numbers))
        for member, place in members.items()
    }
    found = (numbers.get(union.find(place)) for place in other_uses)
    return lists, frozenset(number for number in found if number is not None)


def _handles(typed: Mapping[FunctionUse, Mapping[str, Typed]]) -> frozenset[int]:
    """The types of what may be a list: those of TensorFlow 1 have resource handles."""
    views = (view for part in typed.values() for view in part.values())
    if any(ir.RESOURCE in v.signature.types and v.facts.same_list for v in views):
        return frozenset({ir.VARIANT, ir.RESOURCE})
    return frozenset({ir.VARIANT})


def _join_site(
    site: Site,
    graphs: Mapping[FunctionUse, ir.Graph],
    union: _Union,
    handles: Container[int],
) -> None:
    """Joins the lists that a call passes in and returns."""
    for index, edge in _passed(site):
        if graphs[site.callees[-1]].args[index].type in handles:
            for callee in site.callees:
                arg = graphs[callee].args[index]
                union.join((site.use, edge), (callee, (arg.name, 0)))
    givers = site.call.givers(site.callees)
    for index, result in enumerate(graphs[givers[0]].results):
        if result.type in handles:
            output = (site.use, (site.node.name, index))
            union.join(output, *((c, graphs[c].results[index].edge) for c in givers))
            if site.call.loop:
                union.join(output, (site.use, site.node.inputs[index]))
