"""What crosses between functions: arguments, carried values and tensor lists.

Says which edges of different functions are one tensor or have one type. No choice of
what type that is may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site
from amp.graph_rewrite.ops.op_table import Kind, facts

UseEdge: TypeAlias = tuple[FunctionUse, ir.Edge]  # an edge of one use of a function
Member: TypeAlias = tuple[FunctionUse, str]  # a node of one use


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A float32 value that a loop carries around or a branch returns, in one type.

    Attributes:
      site: the loop or branch.
      index: which of its results.
      begins: the edge that a loop begins with, None for a branch.
      returned: what each function returns for it.
      made: the edges that it is: the arguments, the loop's or branch's output.
    """

    site: Site
    index: int
    begins: UseEdge | None
    returned: tuple[UseEdge, ...]
    made: tuple[UseEdge, ...]

    @property
    def read(self) -> tuple[UseEdge, ...]:
        """All edges that give it its values."""
        return self.returned if self.begins is None else (self.begins, *self.returned)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CallValues:
    """How the functions of a module hang together.

    Attributes:
      sites: the calls whose boundary may change, by caller and node.
      alias: arguments that are their caller's tensor, whatever trip it is.
      carried: values that may change from trip to trip, or come from either branch.
      made: the same by the edges that they are.
      returns: the same by function and result.
      inner: the functions of the sites.
      passed: the arguments that have an alias, by last function and number.
      lists: by node, the tensor lists (a number each) that it works on.
      open: the lists that others than list ops and `sites` handle.
    """

    sites: Mapping[Member, Site]
    alias: Mapping[UseEdge, UseEdge]
    carried: tuple[Carried, ...]
    made: Mapping[UseEdge, Carried]
    returns: Mapping[tuple[FunctionUse, int], Carried]
    inner: frozenset[FunctionUse]
    passed: frozenset[tuple[FunctionUse, int]]
    lists: Mapping[Member, int]
    open: frozenset[int]

    def source(self, place: UseEdge) -> UseEdge:
        """The place that an argument's tensor comes from, or the place itself."""
        while place in self.alias:
            place = self.alias[place]
        return place

    def passes(self, site: Site, index: int) -> bool:
        """Whether the functions of a site read its input `index` as it is."""
        if index < site.call.skip:
            return False
        return (site.callees[-1], index - site.call.skip) in self.passed


def cross(
    graphs: Mapping[FunctionUse, ir.Graph],
    sites: Mapping[Member, Site],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    contexts: Mapping[FunctionUse, Context],
) -> CallValues:
    """Finds what crosses, for each site as for the whole.

    A call that is fed, fetched or behind an unscale marker keeps its boundary.
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
            if not site.call.loop or _hands_on(graphs[site.callees[-1]], index):
                passed.add((site.callees[-1], index))
                for callee in site.callees:
                    arg = graphs[callee].args[index]
                    alias[callee, (arg.name, 0)] = (site.use, edge)
        carried += _carried(site, graphs)
    lists, open_lists = _lists(graphs, usable, typed)
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
        lists=lists,
        open=open_lists,
    )


def _passed(site: Site) -> Iterator[tuple[int, ir.Edge]]:
    return enumerate(site.node.inputs[site.call.skip :])


def _hands_on(body: ir.Graph, index: int) -> bool:
    return body.results[index].edge == (body.args[index].name, 0)


def _carried(site: Site, graphs: Mapping[FunctionUse, ir.Graph]) -> Iterator[Carried]:
    inner = [graphs[callee] for callee in site.callees]
    givers = inner[-1:] if site.call.loop else inner
    for index in range(len(inner[-1].results)):
        if any(graph.results[index].type != ir.FLOAT for graph in givers):
            continue
        if site.call.loop and _hands_on(inner[-1], index):
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


_TOTALS = (Kind.SUM, Kind.IDENTITY)


def running_sums(
    value: Carried, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[Member]:
    """The nodes by which a loop adds to a value on every trip (a gradient, a total).

    Adding many small terms in 16 bits loses all that are below half a unit in the last
    place of the sum (Higham, Accuracy and Stability of Numerical Algorithms, ch. 4).
    """
    if value.begins is None:
        return
    ((use, edge),) = value.returned
    graph = graphs[use]
    own = {place[1] for place in value.made if place[0] == use}
    chain, pending = {edge[0]}, [edge]
    while pending:
        node = graph.nodes.get(pending.pop()[0])
        if node is not None and facts(node.op).kind in _TOTALS:
            pending += [source for source in node.inputs if source[0] not in chain]
            chain.update(source[0] for source in node.inputs)
    through: dict[str, bool] = {}  # by node that hands the value on: whether it adds
    for name in graph.order if own & graph.readers.keys() else ():
        node, kind = graph.nodes[name], facts(graph.nodes[name].op).kind
        if name in chain and kind in _TOTALS:
            hit = [e for e in node.inputs if e in own or e[0] in through]
            if hit:
                adds = kind is Kind.SUM
                through[name] = adds or any(through.get(e[0], False) for e in hit)
    if through.get(edge[0], False):
        yield from ((use, name) for name in through)


class _Union:
    """Disjoint sets of places, by path halving."""

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
    """Numbers the tensor lists, by what hands one variant on to another."""
    union = _Union()
    members: dict[Member, UseEdge] = {}
    strange: list[UseEdge] = []
    for site in sites.values():
        _join_site(site, graphs, union)
    for use, views in typed.items():
        for name, view in views.items():
            if ir.VARIANT not in view.signature.types:
                continue
            pairs = zip(view.node.inputs, view.ins, strict=False)
            ins = [(use, e) for e, slot in pairs if slot.type == ir.VARIANT]
            outs = [
                (use, (name, index))
                for index, slot in enumerate(view.outs)
                if slot.type == ir.VARIANT
            ]
            if view.row is not None and view.row.same_list:
                members[use, name] = (ins + outs)[0]
                union.join(*ins, *outs)
            elif view.facts.hands_on_list and len(ins) == len(outs):
                for before, after in zip(ins, outs, strict=True):
                    union.join(before, after)
            elif (use, name) not in sites:
                strange += ins + outs
    inner = {callee for site in sites.values() for callee in site.callees}
    for use, graph in graphs.items():
        if use not in inner:
            strange += [(use, (arg.name, 0)) for arg in graph.args]
            strange += [(use, result.edge) for result in graph.results]
    numbers: dict[UseEdge, int] = {}
    lists = {
        member: numbers.setdefault(union.find(place), len(numbers))
        for member, place in members.items()
    }
    found = (numbers.get(union.find(place)) for place in strange)
    return lists, frozenset(number for number in found if number is not None)


def _join_site(
    site: Site, graphs: Mapping[FunctionUse, ir.Graph], union: _Union
) -> None:
    for index, edge in _passed(site):
        if graphs[site.callees[-1]].args[index].type == ir.VARIANT:
            for callee in site.callees:
                arg = graphs[callee].args[index]
                union.join((site.use, edge), (callee, (arg.name, 0)))
    givers = site.callees[-1:] if site.call.loop else site.callees
    for index, result in enumerate(graphs[givers[0]].results):
        if result.type == ir.VARIANT:
            output = (site.use, (site.node.name, index))
            union.join(output, *((c, graphs[c].results[index].edge) for c in givers))
            if site.call.loop:
                union.join(output, (site.use, site.node.inputs[index]))
