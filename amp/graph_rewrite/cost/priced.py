"""What each node of a graph costs: seconds in float32 and in 16 bits.

Brings a node's shapes and a cost model together, and what was measured before what
the model says; nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.device import Resolution
from amp.graph_rewrite.cost.model import MOST_RATIO, CostModel
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import arithmetic


@dataclasses.dataclass(frozen=True, slots=True)
class PricedUse:
    """One use of a function, with what its nodes and casts cost each time it runs.

    Attributes:
      use_analysis: what may be done with the use.
      cost_model: the times of nodes and casts on the device that runs it.
      times: seconds in (float32, 16 bits) of every node that touches either type.
    """

    use_analysis: UseAnalysis
    cost_model: CostModel
    times: Mapping[str, Times]

    def cast(self, edge: ir.Edge) -> float:
        """Seconds of one cast of an edge."""
        return self.cost_model.cast(self.use_analysis.graph.shape(edge))


@dataclasses.dataclass(frozen=True, slots=True)
class Priced:
    """A module's analysis with the prices of every use.

    Attributes:
      analysis: what may be done with each use.
      uses: the same uses in the same order, with their prices.
    """

    analysis: Analysis
    uses: Mapping[FunctionUse, PricedUse]

    def narrowed(self, analysis: Analysis) -> Priced:
        """The same prices for an analysis that allows less."""
        uses = {
            use: dataclasses.replace(one, use_analysis=analysis.uses[use])
            for use, one in self.uses.items()
        }
        return Priced(analysis, uses)


def cost_models(settled: Resolution) -> Callable[[FunctionUse], CostModel]:
    """The cost model of each use: XLA has figures of its own on some devices."""
    policy = settled.policy
    assert policy is not None
    return lambda use: CostModel(settled.device.under(use.xla), policy.dtype)


def price(
    analysis: Analysis, cost_model_of: Callable[[FunctionUse], CostModel]
) -> Priced:
    """Prices every node that touches float32 or the 16-bit type.

    Args:
      analysis: of the module.
      cost_model_of: the cost model of each use.
    """
    uses = {}
    for use, one in analysis.uses.items():
        cost_model = cost_model_of(use)
        uses[use] = PricedUse(one, cost_model, times(one, cost_model))
    return Priced(analysis, uses)


def times(use_analysis: UseAnalysis, cost_model: CostModel) -> dict[str, Times]:
    """Seconds in (float32, 16 bits) of every node that touches either."""
    found = use_analysis.found
    return {
        name: _time(use_analysis, view, cost_model)
        for name, view in found.typed.items()
        if view.touches(ir.FLOAT) or name in found.already
    }


def measured_share(priced: Priced) -> float:
    """Which part of the candidates' seconds in float32 was measured."""
    if not any(one.cost_model.measured.times for one in priced.uses.values()):
        return 0.0
    known = every = 0.0
    for one in priced.uses.values():
        for name in one.use_analysis.found.allowed:
            view = one.use_analysis.found.typed[name]
            seconds = one.use_analysis.weight * one.times[name][0]
            every += seconds
            seen = _measured(one.use_analysis, view, one.cost_model)
            known += seconds if seen is not None else 0.0
    return known / every if every else 0.0


def key_of(use_analysis: UseAnalysis, view: Typed, cost_model: CostModel) -> str:
    """The key under which a node's measured times are found; made once a node."""
    keys = cost_model.measured.keys
    if view.node not in keys:
        graph, context = use_analysis.graph, use_analysis.context
        keys[view.node] = op_instance.key(graph, view, context)
    return keys[view.node]


def _measured(
    use_analysis: UseAnalysis, view: Typed, cost_model: CostModel
) -> Times | None:
    if view.node.op not in cost_model.measured.ops:
        return None
    return cost_model.measured.times.get(key_of(use_analysis, view, cost_model))


def _time(use_analysis: UseAnalysis, view: Typed, cost_model: CostModel) -> Times:
    seen = _measured(use_analysis, view, cost_model)
    if seen is not None:
        return seen[0], min(seen[1], MOST_RATIO * seen[0])
    graph, context = use_analysis.graph, use_analysis.context
    node, row = view.node, view.row
    ins = [graph.shape(edge) for edge in node.inputs]
    outs = [graph.shape((node.name, i)) for i in range(len(view.outs))]
    work = "elementwise" if row is None else row.work
    turned_ins = _turning_shapes(ins, view.ins, context)
    turned_outs = _turning_shapes(outs, view.outs, context)
    moved = arithmetic.moved(work, turned_ins, turned_outs)
    equation = node.text("equation") if work == "einsum" else ""
    return cost_model.node(work, moved, arithmetic.flops(work, ins, outs, equation))


def _turning_shapes(
    shapes: Sequence[ir.Shape], slots: Sequence[op_schema.Slot], context: Context
) -> list[ir.Shape]:
    numbers = (ir.FLOAT, context.format.number)
    pairs = zip(shapes, slots, strict=False)
    return [shape for shape, slot in pairs if slot.type in numbers]
