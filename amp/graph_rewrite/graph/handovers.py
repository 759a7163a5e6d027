"""`Handovers`: the edges of different functions, or trips, that hold the same values.

They are what calls, branches and loops hand to their functions, and have of them. What
becomes of a value inside of a function is not told here, nor is any type chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from amp.graph_rewrite.graph import dataset_loops, ir
from amp.graph_rewrite.graph.calls import Call, FunctionUse, Site, UseEdge

_Key = TypeVar("_Key")  # of a function


def handed_on(
    caller: _Key, node: ir.Node, call: Call, callees: Mapping[_Key, ir.Graph]
) -> Iterator[tuple[tuple[_Key, ir.Edge], tuple[_Key, ir.Edge]]]:
    """The edges that a call hands on: the one that gives, and the one that is read.

    Args:
      caller: the key of the function that calls.
      node, call: the call, which hands on all that it reads but what it skips.
      callees: the functions that it calls, by their keys, in its order.
    """
    args = {
        key: [(key, (arg.name, 0)) for arg in graph.args]
        for key, graph in callees.items()
    }
    if call.each:
        for key, graph in callees.items():
            yield from _for_each(caller, node, call, key, graph)
        return
    given = [(caller, edge) for edge in node.inputs[call.skip :]]
    for each in args.values():
        yield from zip(given, each, strict=False)
    for giver in call.givers([*callees]):
        for index, result in enumerate(callees[giver].results):
            made, output = (giver, result.edge), (caller, (node.name, index))
            yield made, output
            if call.loop:
                yield given[index], output
                yield from ((made, each[index]) for each in args.values())


def _for_each(
    caller: _Key,
    node: ir.Node,
    call: Call,
    key: _Key,
    callee: ir.Graph,
) -> Iterator[tuple[tuple[_Key, ir.Edge], tuple[_Key, ir.Edge]]]:
    """Those of a call for each element of a dataset, all outputs of which are one."""
    args = [(key, (arg.name, 0)) for arg in callee.args]
    outputs = [(caller, (node.name, index)) for index in range(max(len(args), 1))]
    for index, edge in enumerate(node.inputs):
        taken = dataset_loops.arguments_of(node, call, index, len(args))
        for after in (*(args[place] for place in taken), *outputs):
            yield (caller, edge), after
    states = dataset_loops.carried(node, call, range(len(callee.results)))
    for index, result in enumerate(callee.results):
        again = [args[index]] if index in states else []
        for after in (*again, *outputs):
            yield (key, result.edge), after


class Handovers:
    """Those of a module.

    Args:
      graphs: every use's graph.
      sites: the calls, loops and branches.
    """

    def __init__(
        self, graphs: Mapping[FunctionUse, ir.Graph], sites: Iterable[Site]
    ) -> None:
        self._graphs, self._sites = graphs, sites

    @functools.cached_property
    def onward(self) -> Mapping[UseEdge, list[UseEdge]]:
        """Of an edge that is handed on, those that are read for it."""
        onward: dict[UseEdge, list[UseEdge]] = {}
        for site in self._sites:
            callees = {callee: self._graphs[callee] for callee in site.callees}
            for before, after in handed_on(site.use, site.node, site.call, callees):
                onward.setdefault(before, []).append(after)
        return onward

    @functools.cached_property
    def back(self) -> Mapping[UseEdge, list[UseEdge]]:
        """Of an edge that is handed on to, those that it has its value from."""
        back: dict[UseEdge, list[UseEdge]] = {}
        for before, afters in self.onward.items():
            for after in afters:
                back.setdefault(after, []).append(before)
        return back
