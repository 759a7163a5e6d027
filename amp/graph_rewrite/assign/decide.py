"""Turns priced candidates into plans: sets up the minimum cut and reads its result.

All functions of a module are decided together, each weighted by its runs per step.
Nothing is changed here, and no rule about ops may enter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from amp.graph_rewrite import figures
from amp.graph_rewrite.assign import min_cut, planned_casts
from amp.graph_rewrite.assign.cast_graph import Tensors
from amp.graph_rewrite.assign.interfaces import Chosen, handed_on, interfaces
from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.assign.planned_casts import UseCasts
from amp.graph_rewrite.assign.tensor import HIGH, LOW, CutVariable
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.context import turning
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.cost.epilogues import epilogues
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.priced import Priced, PricedUse
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.plan import Cast, Interface, Plan, Reason

# By node that Grappler may merge, the partners that have to have its type, and its
# seconds in (float32, 16 bits) if one of them has not.
_Chains: TypeAlias = dict[str, tuple[tuple[str, ...], Times]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Prices:
    """The prices of one use for one run.

    Attributes:
      times: seconds of each node in (float32, 16 bits); 0 in a type in which Grappler
        merges it into a node before it.
      chains: the nodes that may be merged, with their seconds if they are not because a
        partner has another type.
    """

    times: Mapping[str, Times]
    chains: _Chains


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """The result of the minimum cut.

    Attributes:
      low: the variables that are to be 16-bit, and `LOW`.
      tie: seconds per step by which the choice may exceed the optimum due to rounding;
        -inf if costs were not compared.
    """

    low: frozenset[CutVariable]
    tie: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Decision:
    """The decisions for one use.

    Attributes:
      low: the nodes that are to be 16-bit.
      tie: as in `_Cut`.
      before: the casts in the graph as given.
      after: the casts that it will have.
      interface: the argument and result types that change.
      rewritten: whether any function of the module is.
    """

    low: frozenset[str]
    tie: float
    before: frozenset[Cast]
    after: UseCasts
    interface: Interface
    rewritten: bool


def decide(priced: Priced, nominee: Nominee = CUT) -> dict[FunctionUse, Plan]:
    """Chooses the candidates to hold in 16 bits so that a step is fastest.

    All uses of functions are decided together. With the policy's `assignment="all"`,
    or for a nominee of everything, every candidate is chosen, whatever it costs.

    Args:
      priced: the module's candidates and prices, without what the nominee leaves out.
      nominee: the plan that is asked for.

    Returns:
      The plan of each use.
    """
    analysis = priced.analysis
    prices = {use: _prices(one) for use, one in priced.uses.items()}
    tensors = Tensors(priced)
    cut = _cut(priced, tensors, prices, nominee)
    low = {
        use: frozenset(
            name for name in one.found.allowed if tensors.variable(use, name) in cut.low
        )
        for use, one in analysis.uses.items()
    }
    carried = frozenset(
        v for v in analysis.call_values.carried if tensors.carried(v) in cut.low
    )
    chosen = Chosen(analysis, low, carried, planned_casts.inside(tensors, cut.low))
    boundaries = interfaces(chosen)
    before = planned_casts.casts(tensors, {LOW})
    turned = handed_on(analysis, boundaries)
    after = planned_casts.use_casts(tensors, cut.low, turned)
    rewritten = nominee.in_float32 or any(low.values())

    def decision(use: FunctionUse) -> _Decision:
        made = low[use], cut.tie, before[use], after[use], boundaries[use]
        return _Decision(*made, rewritten)

    return {
        use: _plan(one, prices[use], decision(use)) for use, one in priced.uses.items()
    }


def gain(priced: Priced) -> float:
    """The seconds per step that the best choice saves over converting no node.

    Unlike the seconds of plans, this includes the price of storing tensors.
    """
    uses = priced.analysis.uses
    prices = {use: _prices(one) for use, one in priced.uses.items()}
    tensors = Tensors(priced)
    times = _times(uses, tensors, prices)
    priced_tensors = _priced_tensors(tensors, uses, prices)
    others = {variable: times[variable] for variable in tensors.free()}

    def least(free: Mapping[CutVariable, Times]) -> float:
        low = min_cut.solve(free, {LOW}, priced_tensors) | {LOW}
        return min_cut.total(times, priced_tensors, low)

    return least(others) - least(times)


def _priced_tensors(
    tensors: Tensors,
    uses: Mapping[FunctionUse, UseAnalysis],
    prices: Mapping[FunctionUse, _Prices],
) -> list[min_cut.Tensor[CutVariable]]:
    return [*tensors.priced(), *_apart(tensors, uses, prices)]


def _apart(
    tensors: Tensors,
    uses: Mapping[FunctionUse, UseAnalysis],
    prices: Mapping[FunctionUse, _Prices],
) -> Iterator[min_cut.Tensor[CutVariable]]:
    """What nodes cost that are not merged, in the form of casts.

    A node takes its time once if any of its partners has another type, as a tensor is
    cast once for any number of readers.
    """
    for use, one in prices.items():
        weight = uses[use].weight
        for name, (partners, (high, low)) in one.chains.items():
            variable = tensors.variable(use, name)
            producer = None if variable == HIGH else variable
            others = [tensors.variable(use, partner) for partner in partners]
            yield min_cut.Tensor(producer, others, weight * low, weight * high)


def _prices(one: PricedUse) -> _Prices:
    """The use's prices with those of merged nodes moved to `chains`."""
    use_analysis, times = one.use_analysis, dict(one.times)
    chains: _Chains = {}
    for merged in epilogues(use_analysis.graph, use_analysis.context):
        if merged.name in times:
            seconds = times[merged.name]
            times[merged.name] = _only(seconds, [not may for may in merged.types])
            chains[merged.name] = (merged.partners, _only(seconds, merged.types))
    return _Prices(times, chains)


def _only(seconds: Times, types: Sequence[bool]) -> Times:
    """The seconds in the types for which `types` is true, 0 in the other."""
    high, low = (s if chosen else 0.0 for s, chosen in zip(seconds, types, strict=True))
    return high, low


def _cut(
    priced: Priced,
    tensors: Tensors,
    prices: Mapping[FunctionUse, _Prices],
    nominee: Nominee,
) -> _Cut:
    uses = priced.analysis.uses
    times = _times(uses, tensors, prices)
    forced = any(nominee.forced(one.context.policy) for one in uses.values())
    if forced and not nominee.in_float32:
        return _Cut(frozenset(times) | {LOW}, -math.inf)
    priced_tensors = _priced_tensors(tensors, uses, prices)
    low_side = min_cut.solve(times, {LOW}, priced_tensors, _moves(uses, tensors, times))
    return _Cut(low_side | {LOW}, min_cut.rounding(times, priced_tensors))


def _moves(
    uses: Mapping[FunctionUse, UseAnalysis],
    tensors: Tensors,
    times: Mapping[CutVariable, Times],
) -> frozenset[CutVariable]:
    """The nodes that move values and take no time, such as reshapes.

    A cast on either side of one costs the same and gives the same values. Beside a
    product it would be a kernel of its own; on the other side, with the arithmetic
    there, it may be part of a cluster. Not so a Switch: before it, a cast runs whatever
    branch does.
    """
    free: set[CutVariable] = set()
    for use, one in uses.items():
        for name in one.found.allowed:
            moves = one.found.typed[name].facts.role is Role.MOVE
            if moves and name not in one.switches:
                free.add(tensors.variable(use, name))
    return frozenset(
        variable
        for variable in free
        if variable.kind == "node" and times[variable] == (0.0, 0.0)
    )


def _times(
    uses: Mapping[FunctionUse, UseAnalysis],
    tensors: Tensors,
    prices: Mapping[FunctionUse, _Prices],
) -> dict[CutVariable, Times]:
    """Seconds per step of each variable in (float32, 16 bits)."""
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
    spared, undone = (one.spared, 0.0) if decision.rewritten else (0.0, one.spared)
    return Plan(
        dtype=number,
        low=low,
        attrs={name: tuple(turning(found.typed[name], number)) for name in low},
        reasons=_reasons(found, low, prices.times),
        casts=after.casts,
        seconds32=_seconds(one, prices, found.already, decision.before) + undone,
        seconds16=_seconds(one, prices, low | found.already, after.casts)
        + sum(one.cast(edge) for edge in sorted(again))
        + undone,
        spared=spared,
        tie=decision.tie,
        interface=decision.interface,
        casts_saved=after.saved,
        late=after.late,
        to_make=after.to_make,
    )


def _seconds(
    one: PricedUse, prices: _Prices, low: frozenset[str], casts: frozenset[Cast]
) -> float:
    """Seconds of one run of a use with these 16-bit nodes and these casts."""
    total = one.rest + sum(times[name in low] for name, times in prices.times.items())
    for name, (partners, apart) in prices.chains.items():
        if any((partner in low) != (name in low) for partner in partners):
            total += apart[name in low]
    for edge, _ in sorted(casts):  # so that rounding of the sum is reproducible
        total += one.cast(edge)
    return total


def _reasons(
    found: Candidates,
    chosen: frozenset[str],
    times: Mapping[str, Times],
) -> dict[str, Reason]:
    """The reason for the type of every node with float32 or 16-bit tensors."""
    reasons = dict(found.refused)
    for name in sorted(found.already):
        reasons[name] = Reason("already", name)
    for name, reason in found.allowed.items():
        high, low = times[name]
        told = f"{figures.time(high)} in float32, {figures.time(low)} in 16 bits"
        reasons[name] = reason if name in chosen else Reason("cost", told)
    return reasons
