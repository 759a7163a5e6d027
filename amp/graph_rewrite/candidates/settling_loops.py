"""Loops that run until what they compute settles: rounding may keep them from ending.

Loops that are functions only, not those of TensorFlow 1. No cost may enter.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Member
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site
from amp.graph_rewrite.plan import Reason


def settling_loops(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    call_values: CallValues,
) -> dict[Member, Reason]:
    """Refuses what a loop computes the difference from that its condition waits for::

        while max(abs(new - old)) > tolerance: old, new = new, f(new)

    In 16 bits the difference comes down to a unit in the last place and stays there. A
    loop is one of these if its condition reads a floating loop variable that comes,
    over the trips, from loop variables and from a difference. All that it comes from is
    refused, products too.

    Args:
      graphs: every use's graph.
      typed: its nodes.
      call_values: the tensors that pass between functions.
    """
    found: dict[Member, Reason] = {}
    for site in call_values.sites.values():
        if site.call.loop:
            body = site.callees[-1]
            names = _differences(site, graphs, typed)
            reason = Reason("settles", site.node.name)
            found |= {(body, name): reason for name in names}
    return found


def _differences(
    site: Site,
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> set[str]:
    """The nodes of a loop's body that its condition depends on, if by a difference."""
    condition, body = (graphs[callee] for callee in site.callees)
    views = typed[site.callees[-1]]
    places = {arg.name: index for index, arg in enumerate(body.args)}
    tested = [
        index
        for index, arg in enumerate(condition.args)
        if arg.type == ir.FLOAT and condition.readers.get((arg.name, 0))
    ]
    pending = [body.results[index].edge for index in tested]
    found: set[str] = set()
    carried: set[int] = set()
    while pending:
        name, _ = edge = pending.pop()
        if name in places:
            index = places[name]
            changes = body.results[index].edge != edge
            if body.args[index].type == ir.FLOAT and changes and index not in carried:
                carried.add(index)
                pending.append(body.results[index].edge)
        elif name not in found:
            found.add(name)
            pairs = zip(views[name].node.inputs, views[name].ins, strict=False)
            pending += [one for one, slot in pairs if slot.type == ir.FLOAT]
    tests = typed[site.callees[0]].values()
    differs = any(map(_differs, (*tests, *(views[name] for name in found))))
    return found if carried and differs else set()


def _differs(view: Typed) -> bool:
    """Whether a node subtracts one floating tensor from another one."""
    floats = sum(slot.type == ir.FLOAT for slot in view.ins)
    return view.facts.subtracts and floats > 1
