"""Which arguments and results of functions become 16-bit, given the 16-bit nodes.

It follows from the decisions of `decide`; nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.candidates.analysis import Analysis
from amp.graph_rewrite.candidates.call_values import Carried
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site, UseEdge
from amp.graph_rewrite.plan import Interface

# The types in which an argument is read: False for float32, True for 16 bits.
_Forms: TypeAlias = frozenset[bool]


@dataclasses.dataclass(slots=True)
class _InterfaceBuilder:
    """Collects the parts of an `Interface`, with the same attributes."""

    args: set[str] = dataclasses.field(default_factory=set)
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    returns: bool = False
    results: set[int] = dataclasses.field(default_factory=set)
    takes: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    gives: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    adds: dict[str, list[ir.Edge]] = dataclasses.field(default_factory=dict)

    def frozen(self) -> Interface:
        return Interface(
            args=frozenset(self.args),
            given=self.given,
            returns=self.returns,
            results=frozenset(self.results),
            takes={name: frozenset(ports) for name, ports in self.takes.items()},
            gives={name: frozenset(ports) for name, ports in self.gives.items()},
            adds={name: tuple(edges) for name, edges in self.adds.items()},
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen to be 16-bit.

    Attributes:
      analysis: of the module.
      low: the 16-bit nodes of each use.
      carried: the 16-bit loop variables and branch results.
      inside: the arguments of branches that are cast there; whether the caller passes
        them in 16 bits.
    """

    analysis: Analysis
    low: Mapping[FunctionUse, frozenset[str]]
    carried: Set[Carried]
    inside: Mapping[UseEdge, bool]


def interfaces(chosen: Chosen) -> dict[FunctionUse, Interface]:
    """The change of argument and result types of each use, and of the calls in it.

    1. A loop variable or branch result that was chosen to be 16-bit is 16-bit on all
       its edges.
    2. An argument that is a tensor of the caller (`CallValues.alias`) becomes 16-bit if
       it is read in 16 bits only. If it is read in both types, the 16-bit form is
       passed as a further argument.
    3. An argument that is cast in a branch has the type that the tensor is made in.

    Args:
      chosen: what was chosen.
    """
    analysis, carried = chosen.analysis, chosen.carried
    builders = {use: _InterfaceBuilder() for use in analysis.uses}
    for value in carried:
        _turn_carried(value, analysis, builders)
    forms: dict[tuple[FunctionUse, str], _Forms] = {}
    for use in reversed(list(analysis.uses)):
        if use in analysis.call_values.inner:
            forms |= _forms(use, chosen, forms)
    for site in analysis.call_values.sites.values():
        _turn_passed(site, analysis, forms, builders)
    return {use: builder.frozen() for use, builder in builders.items()}


def handed_on(
    analysis: Analysis, boundaries: Mapping[FunctionUse, Interface]
) -> frozenset[UseEdge]:
    """Outputs of loops that turn because what goes in does and comes out unchanged."""
    made = analysis.call_values.made
    gives = (
        (use, (name, index))
        for use, boundary in boundaries.items()
        for name, turned in boundary.gives.items()
        for index in turned
    )
    return frozenset(place for place in gives if place not in made)


def _turn_carried(
    value: Carried,
    analysis: Analysis,
    builders: Mapping[FunctionUse, _InterfaceBuilder],
) -> None:
    """Case 1 of `interfaces` for one value."""
    site, index = value.site, value.index
    caller = builders[site.use]
    caller.gives.setdefault(site.node.name, set()).add(index)
    for callee, _ in value.returned:
        builders[callee].results.add(index)
    if value.begins is not None:
        caller.takes.setdefault(site.node.name, set()).add(index)
        for callee in site.callees:
            arg = analysis.uses[callee].graph.args[index]
            builders[callee].args.add(arg.name)


def _forms(
    use: FunctionUse,
    chosen: Chosen,
    inside: Mapping[tuple[FunctionUse, str], _Forms],
) -> dict[tuple[FunctionUse, str], _Forms]:
    """The types in which each argument of a use is read, in its callees too."""
    analysis, low, turned = chosen.analysis, chosen.low[use], chosen.carried
    call_values = analysis.call_values
    graph, typed = analysis.uses[use].graph, analysis.uses[use].found.typed
    found: dict[tuple[FunctionUse, str], _Forms] = {}
    for arg in graph.args:
        if (use, (arg.name, 0)) in chosen.inside:  # Case 3
            found[use, arg.name] = frozenset({chosen.inside[use, (arg.name, 0)]})
            continue
        forms: set[bool] = set()
        for name, index in graph.readers.get((arg.name, 0), ()):
            site = call_values.sites.get((use, name))
            if site is None:
                view = typed[name]
                turns = view.row is not None and view.ins[index].attr in view.row.attrs
                forms.add(name in low and turns)
            elif call_values.passes(site, index):
                for callee in site.callees:
                    inner_args = analysis.uses[callee].graph.args
                    inner = inner_args[index - site.call.skip].name
                    forms |= inside.get((callee, inner), frozenset())
            else:
                forms.add(call_values.made.get((use, (name, index))) in turned)
        for index, result in enumerate(graph.results):
            if result.edge == (arg.name, 0):
                value = call_values.returns.get((use, index))
                if value is not None:
                    forms.add(value in turned)
        found[use, arg.name] = frozenset(forms)
    return found


def _turn_passed(
    site: Site,
    analysis: Analysis,
    forms: Mapping[tuple[FunctionUse, str], _Forms],
    builders: Mapping[FunctionUse, _InterfaceBuilder],
) -> None:
    """Case 2 of `interfaces` for the arguments of one call."""
    caller, name = builders[site.use], site.node.name
    for callee in site.callees:
        builders[callee].returns = site.call.loop and callee == site.callees[-1]
    for index, edge in enumerate(site.node.inputs):
        number = index - site.call.skip
        if not analysis.call_values.passes(site, index):
            continue
        args = [(c, analysis.uses[c].graph.args[number]) for c in site.callees]
        if args[0][1].type != ir.FLOAT:
            continue
        wanted = frozenset[bool]().union(*(forms[c, arg.name] for c, arg in args))
        if wanted == {True}:
            caller.takes.setdefault(name, set()).add(index)
            for callee, arg in args:
                builders[callee].args.add(arg.name)
            if site.call.loop:
                caller.gives.setdefault(name, set()).add(index)
                builders[site.callees[-1]].results.add(index)
        elif True in wanted:
            caller.adds.setdefault(name, []).append(edge)
            for callee, arg in args:
                builders[callee].given[arg.name] = f"{arg.name}_amp_low"
