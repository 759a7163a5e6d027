"""Tensors that pass between functions: arguments, loop variables and tensor lists.

Finds which edges of different functions are the same tensor or have to have the same
type. No choice of that type may enter.
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
      lists: for each node on a tensor list, the number of the list.
      open: the lists that are also used by other nodes than list ops and `sites`.
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
        """The edge where a tensor is made, following `alias` out of functions."""
        while place in self.alias:
            place = self.alias[place]
        return place

    def passes(self, site: Site, index: int) -> bool:
        """Whether input `index` of a site's node is in `alias` inside its functions."""
        if index < site.call.skip:
            return False
        return (site.callees[-1], index - site.call.skip) in self.passed


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
      sites: the calls whose types may change (`calls.sites`).
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


def _returns_unchanged(body: ir.Graph, index: int) -> bool:
    return body.results[index].edge == (body.args[index].name, 0)


def _carried(site: Site, graphs: Mapping[FunctionUse, ir.Graph]) -> Iterator[Carried]:
    inner = [graphs[callee] for callee in site.callees]
    givers = inner[-1:] if site.call.loop else inner
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


# The ops between a loop variable and the value that a running sum returns for it.
_TOTALS = (Kind.SUM, Kind.IDENTITY)


def running_sums(
    value: Carried, graphs: Mapping[FunctionUse, ir.Graph]
) -> Iterator[Member]:
    """The nodes by which a loop adds to a loop variable on every trip.

    Such sums (gradients of an RNN's weights, totals) stay float32: a 16-bit sum loses
    all terms below half a unit in its last place (Higham, Accuracy and Stability of
    Numerical Algorithms, ch. 4).
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
    through: dict[str, bool] = {}  # nodes that the variable passes: whether one added
    for name in graph.order if own & graph.readers.keys() else ():
        node, kind = graph.nodes[name], facts(graph.nodes[name].op).kind
        if name in chain and kind in _TOTALS:
            from_variable = [e for e in node.inputs if e in own or e[0] in through]
            if from_variable:
                adds = kind is Kind.SUM
                through[name] = adds or any(
                    through.get(e[0], False) for e in from_variable
                )
    if through.get(edge[0], False):
        yield from ((use, name) for name in through)


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
    union = _Union()
    members: dict[Member, UseEdge] = {}
    other_uses: list[UseEdge] = []
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


def _join_site(
    site: Site, graphs: Mapping[FunctionUse, ir.Graph], union: _Union
) -> None:
    """Joins the variants that a call passes in and returns."""
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
