"""Adds rewritten functions to the module under new names and makes calls use them.

Only names change here; the bodies of functions are done before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.graph import calls as calls_lib
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import Call, FunctionUse, graph_of


@dataclasses.dataclass(frozen=True, slots=True)
class Linked:
    """A module with originals and rewritten functions.

    Attributes:
      module: the module.
      graphs: the rewritten graph of each use that changed.
    """

    module: ir.Module
    graphs: Mapping[FunctionUse, ir.Graph]

    def made_use(self, use: FunctionUse) -> FunctionUse:
        """The use of the rewritten function that one of an original became."""
        made = self.graphs.get(use)
        return use if made is None else FunctionUse(made.name, use.xla)


def link(
    given: ir.Module, graphs: Mapping[FunctionUse, ir.Graph], suffix: str
) -> Linked:
    """Gives changed functions, and all their callers, new names, and updates the calls.

    The functions of the module given stay in it unchanged. The main graph of a GraphDef
    keeps its empty name.

    Args:
      given: the module as it was read.
      graphs: the graph of each use after `apply_plans`.
      suffix: ending of the new functions' names.
    """
    calls = {use: list(_calls(given, graphs, use)) for use in graphs}
    names = _named(given, graphs, calls, suffix)
    made = {}
    for use, name in names.items():
        graph, renamed = graphs[use], {}
        for node, call, callees in calls[use]:
            new = {callee.name: names[callee] for callee in callees if callee in names}
            if new:
                renamed[node.name] = calls_lib.renamed(node, call, new)
        if renamed:
            graph = graph.with_nodes({**graph.nodes, **renamed})
        made[use] = graph.of_same_nodes(name=name)
    main, functions = given.main, dict(given.functions)
    for use, graph in graphs.items():  # unchanged, with the sizes they are priced by
        if use not in made and use.name in functions:
            functions[use.name] = graph
    for use, graph in made.items():
        if graph_of(given, use) is given.main:
            main = graph
        else:
            functions[graph.name] = graph
    return Linked(ir.Module(main, functions), made)


_Calls: TypeAlias = list[tuple[ir.Node, Call, list[FunctionUse]]]


def _named(
    given: ir.Module,
    graphs: Mapping[FunctionUse, ir.Graph],
    calls: Mapping[FunctionUse, _Calls],
    suffix: str,
) -> dict[FunctionUse, str]:
    """The new name of each use that changed or that calls one that changed."""
    changed = {use for use in graphs if _differ(graphs[use], graph_of(given, use))}
    pending = True
    while pending:
        callers = {
            use
            for use in graphs
            if any(not changed.isdisjoint(callees) for _, _, callees in calls[use])
        }
        pending = not callers <= changed
        changed |= callers
    names = {}
    for use in (use for use in graphs if use in changed):
        both = use.xla and FunctionUse(use.name, False) in changed
        name = f"{use.name}{suffix}{'_xla' if both else ''}"
        while name in given.functions:  # the name is from an earlier rewrite
            name += "_"
        names[use] = name if use.name else ""
    return names


def _differ(made: ir.Graph, given: ir.Graph) -> bool:
    """Whether a function was changed, other than by what is known of its shapes."""
    if made.nodes is not given.nodes:
        return True
    return (made.args, made.results) != (given.args, given.results)


def _calls(
    given: ir.Module, graphs: Mapping[FunctionUse, ir.Graph], use: FunctionUse
) -> Iterator[tuple[ir.Node, Call, list[FunctionUse]]]:
    for node, call in calls_lib.calls(graphs[use], given.functions):
        uses = calls_lib.uses_of(node, call, use.xla, given.functions)
        yield node, call, [callee for callee in uses if callee in graphs]
