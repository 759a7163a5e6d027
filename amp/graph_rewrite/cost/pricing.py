"""What each node of a graph costs: seconds in float32 and in 16 bits.

Brings a node's shapes and a cost model together, and what was measured before what
the model says; nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.measurement_candidates import wanted
from amp.graph_rewrite.cost.model import MOST_RATIO, CostModel, Measured
from amp.graph_rewrite.cost.op_instance import Instance, Timer, Times
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.plan import Reason


def untimed(instances: Sequence[Instance]) -> Mapping[str, Times]:
    """A timer that knows nothing: the model prices everything."""
    return {}


def measured(analysis: Analysis, timer: Timer) -> Analysis:
    """The program with what the timer gives for all of its parts together.

    What failed in 16 bits is no candidate any more. The timer is not asked where no
    cost is weighed.
    """
    parts = list(analysis.parts.values())
    policies = {part.context.policy for part in parts}
    weighs = all(p.assignment == "cost" and not p.emulate for p in policies)
    if not weighs or timer is untimed:
        return analysis
    priced = [
        (part, times(part.graph, part.found, part.context, part.cost_model))
        for part in parts
    ]
    instances = wanted(priced)
    seen = timer(instances) if instances else {}
    known = [one for one in instances if one.key in seen]
    cost_models = {}
    for use, part in analysis.parts.items():
        executor = op_instance.executor_of(part.context)
        own = [one for one in known if one.executor == executor]
        points = [(one.work, one.predicted, seen[one.key]) for one in own]
        found = Measured({one.key: seen[one.key] for one in own}, points)
        cost_models[use] = part.cost_model.with_measured(found)
    return usable(analysis.timed(cost_models))


def usable(analysis: Analysis) -> Analysis:
    """The program without the candidates that failed when they were measured."""
    gone = {}
    for use, part in analysis.parts.items():
        failed = {
            k for k, t in part.cost_model.measured.times.items() if math.isinf(t[1])
        }
        if not failed:
            continue
        cause = f"fails in {part.context.format.name}, as was seen when it was measured"
        found = analysis.narrowed[use]
        refused = {
            name: Reason("kernel", f"{found.typed[name].node.op} {cause}")
            for name in part.found.allowed
            if _key(part.graph, found.typed[name], part.context, part.cost_model)
            in failed
        }
        if refused:
            left = {
                n: reason for n, reason in found.allowed.items() if n not in refused
            }
            gone[use] = dataclasses.replace(
                found, allowed=left, refused={**found.refused, **refused}
            )
    return analysis.without(gone) if gone else analysis


def times(
    graph: ir.Graph,
    found: Candidates,
    context: Context,
    cost_model: CostModel,
) -> dict[str, Times]:
    """Seconds in (float32, 16 bits) of every node that touches either."""
    return {
        name: _time(graph, view, context, cost_model)
        for name, view in found.typed.items()
        if view.touches(ir.FLOAT) or name in found.already
    }


def measured_share(parts: Sequence[UseAnalysis]) -> float:
    """Which part of the candidates' seconds in float32 was measured."""
    if not any(part.cost_model.measured.times for part in parts):
        return 0.0
    known = every = 0.0
    for part in parts:
        for name in part.found.allowed:
            given = (part.graph, part.found.typed[name], part.context, part.cost_model)
            seconds = part.weight * _time(*given)[0]
            every += seconds
            known += seconds if _measured(*given) is not None else 0.0
    return known / every if every else 0.0


def _key(graph: ir.Graph, view: Typed, context: Context, cost_model: CostModel) -> str:
    keys = cost_model.measured.keys
    if view.node not in keys:
        keys[view.node] = op_instance.key(graph, view, context)
    return keys[view.node]


def _measured(
    graph: ir.Graph, view: Typed, context: Context, cost_model: CostModel
) -> Times | None:
    if view.node.op not in cost_model.measured.ops:
        return None
    return cost_model.measured.times.get(_key(graph, view, context, cost_model))


def _time(
    graph: ir.Graph, view: Typed, context: Context, cost_model: CostModel
) -> Times:
    seen = _measured(graph, view, context, cost_model)
    if seen is not None:
        return seen[0], min(seen[1], MOST_RATIO * seen[0])
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
