"""How boundaries of functions turn 16-bit, once it is decided what is 16-bit in them.

Follows from the decisions; nothing is weighed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.candidates.call_values import CallValues, Carried
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site
from amp.graph_rewrite.plan import Interface

_Graphs: TypeAlias = Mapping[FunctionUse, tuple[ir.Graph, Mapping[str, Typed]]]
# The forms in which an argument is read: float32, 16 bits.
_Forms: TypeAlias = frozenset[bool]


@dataclasses.dataclass(slots=True)
class _InterfaceBuilder:
    """An `Interface` in the making."""

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


def interfaces(
    graphs: _Graphs,
    call_values: CallValues,
    low: Mapping[FunctionUse, frozenset[str]],
    turned: Set[Carried],
) -> list[Interface]:
    """How the boundary of each use turns, in the order of `graphs`.

    1. A carried value that was decided to be 16-bit is so at every edge that it is.
    2. An argument that is its caller's tensor turns if it is only read in 16 bits;
       where it is read in both forms, its 16-bit form becomes another argument.

    Args:
      graphs: every use with the types of its ports, callers first.
      call_values: how they hang together.
      low: the nodes that turn.
      turned: the carried values that do.
    """
    faces = {use: _InterfaceBuilder() for use in graphs}
    for value in turned:
        _carry(value, graphs, faces)
    forms: dict[tuple[FunctionUse, str], _Forms] = {}
    for use in reversed(list(graphs)):
        if use in call_values.inner:
            forms |= _forms(use, graphs, call_values, low[use], turned, forms)
    for site in call_values.sites.values():
        _pass_on(site, graphs, call_values, forms, faces)
    return [face.frozen() for face in faces.values()]


def _carry(
    value: Carried, graphs: _Graphs, faces: Mapping[FunctionUse, _InterfaceBuilder]
) -> None:
    site, index = value.site, value.index
    face = faces[site.use]
    face.gives.setdefault(site.node.name, set()).add(index)
    for callee, _ in value.returned:
        faces[callee].results.add(index)
    if value.begins is not None:
        face.takes.setdefault(site.node.name, set()).add(index)
        for callee in site.callees:
            faces[callee].args.add(graphs[callee][0].args[index].name)


def _forms(
    use: FunctionUse,
    graphs: _Graphs,
    call_values: CallValues,
    low: frozenset[str],
    turned: Set[Carried],
    inside: Mapping[tuple[FunctionUse, str], _Forms],
) -> dict[tuple[FunctionUse, str], _Forms]:
    """The forms in which each argument of a use is read, its own calls included."""
    graph, typed = graphs[use]
    found: dict[tuple[FunctionUse, str], _Forms] = {}
    for arg in graph.args:
        forms: set[bool] = set()
        for name, index in graph.readers.get((arg.name, 0), ()):
            site = call_values.sites.get((use, name))
            if site is None:
                view = typed[name]
                turns = view.row is not None and view.ins[index].attr in view.row.attrs
                forms.add(name in low and turns)
            elif call_values.passes(site, index):
                for callee in site.callees:
                    inner = graphs[callee][0].args[index - site.call.skip].name
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


def _pass_on(
    site: Site,
    graphs: _Graphs,
    call_values: CallValues,
    forms: Mapping[tuple[FunctionUse, str], _Forms],
    faces: Mapping[FunctionUse, _InterfaceBuilder],
) -> None:
    face, name = faces[site.use], site.node.name
    for callee in site.callees:
        faces[callee].returns = site.call.loop and callee == site.callees[-1]
    for index, edge in enumerate(site.node.inputs):
        number = index - site.call.skip
        if not call_values.passes(site, index):
            continue
        args = [(callee, graphs[callee][0].args[number]) for callee in site.callees]
        if args[0][1].type != ir.FLOAT:
            continue
        wanted = frozenset[bool]().union(*(forms[c, arg.name] for c, arg in args))
        if wanted == {True}:
            face.takes.setdefault(name, set()).add(index)
            for callee, arg in args:
                faces[callee].args.add(arg.name)
            if site.call.loop:
                face.gives.setdefault(name, set()).add(index)
                faces[site.callees[-1]].results.add(index)
        elif True in wanted:
            face.adds.setdefault(name, []).append(edge)
            for callee, arg in args:
                faces[callee].given[arg.name] = f"{arg.name}_amp_low"
