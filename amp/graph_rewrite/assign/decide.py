"""From priced candidates to plans: sets up the minimum cut and reads the plans off it.

Nothing is changed here, and no rule about ops may enter. All functions of a module are
decided together, each weighted by how often it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from amp.graph_rewrite.assign import min_cut
from amp.graph_rewrite.assign.cast_graph import CastPrices, Tensors, UseCasts
from amp.graph_rewrite.assign.interfaces import interfaces
from amp.graph_rewrite.assign.tensor import LOW, CutVariable
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.context import turning
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.cost.epilogues import epilogues
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.priced import Priced, PricedUse
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Cast, Interface, Plan, Reason


@dataclasses.dataclass(frozen=True, slots=True)
class _Prices:
    """The prices of one use, each time it runs.

    Attributes:
      times: of nodes; of one that is merged into the product before it, nothing.
      after_cast: by the edge between the two, what the merged node costs after all if a
        cast on that edge keeps them apart.
    """

    times: Mapping[str, Times]
    after_cast: CastPrices


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """What the minimum cut puts on the 16-bit side, and how exact it is.

    Attributes:
      low: the variables that are to be 16-bit, and `LOW`.
      tie: seconds that the choice may be over the cheapest; -inf: none was weighed.
    """

    low: frozenset[CutVariable]
    tie: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Decision:
    """What was decided for one use.

    Attributes:
      low: the nodes that are to be 16-bit.
      tie: as in `_Cut`.
      before: the casts that the use has as it was given.
      after: the casts that it will have.
      interface: how its boundary turns.
    """

    low: frozenset[str]
    tie: float
    before: frozenset[Cast]
    after: UseCasts
    interface: Interface


def decide(priced: Priced) -> dict[FunctionUse, Plan]:
    """Chooses among the candidates of all uses together.

    With `assignment="all"` every candidate is taken, whatever it costs.
    """
    analysis = priced.analysis
    prices = {use: _prices(one) for use, one in priced.uses.items()}
    tensors = _tensors(priced, prices)
    cut = _cut(analysis.uses, tensors, prices)
    low = {
        use: frozenset(
            name for name in one.found.allowed if tensors.variable(use, name) in cut.low
        )
        for use, one in analysis.uses.items()
    }
    turned = {of for kind, of in cut.low if kind == "carried"}
    carried = frozenset(v for v in analysis.call_values.carried if v in turned)
    boundaries = interfaces(analysis, low, carried)
    before, after = tensors.casts({LOW}), tensors.use_casts(cut.low)
    return {
        use: _plan(
            one,
            prices[use],
            _Decision(low[use], cut.tie, before[use], after[use], boundaries[use]),
        )
        for use, one in priced.uses.items()
    }


def gain(priced: Priced) -> float:
    """Seconds a step that the choice is cheaper than turning no node, by its prices.

    Those of holding tensors in memory are among them, which are in no plan's seconds.
    """
    uses = priced.analysis.uses
    prices = {use: _prices(one) for use, one in priced.uses.items()}
    tensors = _tensors(priced, prices)
    times, priced_tensors = _times(uses, tensors, prices), tensors.priced()
    others = {variable: times[variable] for variable in tensors.free()}

    def least(free: Mapping[CutVariable, Times]) -> float:
        low = min_cut.solve(free, {LOW}, priced_tensors) | {LOW}
        return min_cut.total(times, priced_tensors, low)

    return least(others) - least(times)


def _tensors(priced: Priced, prices: Mapping[FunctionUse, _Prices]) -> Tensors:
    return Tensors(priced, {use: p.after_cast for use, p in prices.items()})


def _prices(one: PricedUse) -> _Prices:
    use_analysis, times = one.use_analysis, dict(one.times)
    typed, after_cast = use_analysis.found.typed, {}
    for name in epilogues(use_analysis.graph, typed, use_analysis.context):
        if name in times:
            edge = typed[name].node.inputs[0]
            after_cast[edge], times[name] = times[name], (0.0, 0.0)
    return _Prices(times, after_cast)


def _cut(
    uses: Mapping[FunctionUse, UseAnalysis],
    tensors: Tensors,
    prices: Mapping[FunctionUse, _Prices],
) -> _Cut:
    times = _times(uses, tensors, prices)
    if any(one.context.policy.assignment == "all" for one in uses.values()):
        return _Cut(frozenset(times) | {LOW}, -math.inf)
    priced = tensors.priced()
    low_side = min_cut.solve(times, {LOW}, priced)
    return _Cut(low_side | {LOW}, min_cut.rounding(times, priced))


def _times(
    uses: Mapping[FunctionUse, UseAnalysis],
    tensors: Tensors,
    prices: Mapping[FunctionUse, _Prices],
) -> dict[CutVariable, Times]:
    """Seconds a step of everything that is chosen, in (float32, 16 bits)."""
    times = tensors.free()
    for use, one in uses.items():
        for name in one.found.allowed:
            variable = tensors.variable(use, name)
            high, low = times.get(variable, (0.0, 0.0))
            own = prices[use].times[name]
            times[variable] = (high + one.weight * own[0], low + one.weight * own[1])
    return times


def _plan(one: PricedUse, prices: _Prices, decision: _Decision) -> Plan:
    found, number = one.use_analysis.found, one.use_analysis.context.format.number
    after, low = decision.after, decision.low
    again = {found.typed[name].node.inputs[index] for name, index in after.late}
    return Plan(
        dtype=number,
        low=low,
        attrs={name: tuple(turning(found.typed[name], number)) for name in low},
        reasons=_reasons(found, low, prices.times),
        casts=after.casts,
        seconds32=_seconds(one, prices, found.already, decision.before),
        seconds16=_seconds(one, prices, low | found.already, after.casts)
        + sum(one.cast(edge) for edge in sorted(again)),
        tie=decision.tie,
        interface=decision.interface,
        casts_saved=after.saved,
        late=after.late,
    )


def _seconds(
    one: PricedUse, prices: _Prices, low: frozenset[str], casts: frozenset[Cast]
) -> float:
    """What one run of a use takes with these nodes in 16 bits and these casts."""
    total = sum(times[name in low] for name, times in prices.times.items())
    for edge, down in sorted(casts):  # sums depend on the order
        total += one.cast(edge)
        total += prices.after_cast[edge][down] if edge in prices.after_cast else 0.0
    return total


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
