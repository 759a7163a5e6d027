"""From candidates to plans: prices every node and tensor, then lets `assign` choose.

Nothing is changed here, and no rule about ops may enter. All functions of a module are
decided together, each weighted by how often it runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp.graph_rewrite.assign import min_cut
from amp.graph_rewrite.assign.cast_graph import LOW, CastPrices, Choice, Late, Tensors
from amp.graph_rewrite.assign.interfaces import interfaces
from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis
from amp.graph_rewrite.candidates.context import turning
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.cost import pricing
from amp.graph_rewrite.cost.epilogues import epilogues
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, Interface, Plan, Reason


def decide(analysis: Analysis) -> dict[FunctionUse, Plan]:
    """Prices the candidates of all uses and chooses among them.

    With `assignment="all"` every candidate is taken, whatever it costs.
    """
    parts, call_values, turns = analysis.parts, analysis.call_values, analysis.turning
    times = {
        use: pricing.times(part.graph, part.found, part.context, part.cost_model)
        for use, part in parts.items()
    }
    cast_prices = {use: _merged(part, times[use]) for use, part in parts.items()}
    gathered = Tensors(parts, call_values, turns, cast_prices)
    chosen, tie = _chosen(gathered, times)
    low = {
        use: frozenset(n for n in part.found.allowed if gathered.key(use, n) in chosen)
        for use, part in parts.items()
    }
    casts = gathered.casts(chosen | {LOW})
    before = gathered.casts({LOW})
    casts_saved = gathered.casts_saved(chosen | {LOW})
    late = gathered.late(chosen | {LOW})
    faces = interfaces(
        {use: (part.graph, part.found.typed) for use, part in parts.items()},
        call_values,
        low,
        frozenset(turns & chosen),
    )
    return {
        use: _plan(
            part,
            (times[use], cast_prices[use]),
            low[use],
            (before[use], casts[use]),
            tie,
            face,
            (casts_saved[use], late[use]),
        )
        for (use, part), face in zip(parts.items(), faces, strict=True)
    }


def _merged(part: UseAnalysis, times: dict[str, Times]) -> CastPrices:
    """Prices epilogues at nothing, and casts that keep them apart at what they are.

    Returns:
      By the edge that a cast would stand on, what the node after it then costs.
    """
    cast_prices = {}
    for name in epilogues(part.graph, part.found.typed, part.context):
        if name in times:
            edge = part.found.typed[name].node.inputs[0]
            cast_prices[edge], times[name] = times[name], (0.0, 0.0)
    return cast_prices


def _plan(
    part: UseAnalysis,
    prices: tuple[Mapping[str, Times], CastPrices],
    chosen: frozenset[str],
    casts: tuple[frozenset[tuple[ir.Edge, bool]], frozenset[tuple[ir.Edge, bool]]],
    tie: float,
    interface: Interface,
    more: tuple[CastsSaved, Late],
) -> Plan:
    number, already = part.context.format.number, part.found.already
    (times, cast_prices), (casts_saved, late) = prices, more
    again = {part.found.typed[n].node.inputs[i] for n, i in late}
    recast = sum(part.cost_model.cast(part.graph.shape(edge)) for edge in sorted(again))

    def seconds(low: frozenset[str], made: frozenset[tuple[ir.Edge, bool]]) -> float:
        total = sum(times[name][name in low] for name in times)
        for edge, down in sorted(made):  # sums depend on the order
            total += part.cost_model.cast(part.graph.shape(edge))
            total += cast_prices[edge][down] if edge in cast_prices else 0.0
        return total

    return Plan(
        dtype=number,
        low=chosen,
        attrs={n: tuple(turning(part.found.typed[n], number)) for n in chosen},
        reasons=_reasons(part.found, chosen, times),
        casts=casts[1],
        seconds32=seconds(already, casts[0]),
        seconds16=seconds(chosen | already, casts[1]) + recast,
        tie=tie,
        interface=interface,
        casts_saved=casts_saved,
        late=late,
    )


def _chosen(
    gathered: Tensors, times: Mapping[FunctionUse, Mapping[str, Times]]
) -> tuple[frozenset[Choice], float]:
    """What is to be 16-bit, and by how many seconds that may miss the cheapest."""
    free: dict[Choice, Times] = dict.fromkeys(gathered.turns, (0.0, 0.0))
    free.update(gathered.holding())
    forced = False
    for use, part in gathered.parts.items():
        forced |= part.context.policy.assignment == "all"
        for name in part.found.allowed:
            key = gathered.key(use, name)
            high, low = free.get(key, (0.0, 0.0))
            more = times[use][name]
            free[key] = (high + part.weight * more[0], low + part.weight * more[1])
    if forced:
        return frozenset(free), -math.inf
    tensors = gathered.priced()
    return min_cut.solve(free, {LOW}, tensors), min_cut.rounding(free, tensors)


def _reasons(
    found: Candidates,
    chosen: frozenset[str],
    times: Mapping[str, Times],
) -> dict[str, Reason]:
    reasons = dict(found.refused)
    for name in found.already:
        reasons[name] = Reason("already", name)
    for name, reason in found.allowed.items():
        high, low = times[name]
        figures = f"{high * 1e6:.1f} us in float32, {low * 1e6:.1f} us in 16 bits"
        reasons[name] = reason if name in chosen else Reason("cost", figures)
    return reasons
