"""The report on a rewrite: what was decided, counted and told.

Nothing is decided here; what a report is, is `report`'s to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.cost import pricing
from amp.graph_rewrite.cost.device import Resolution
from amp.graph_rewrite.fusion.fuse import Fusion
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, Plan
from amp.graph_rewrite.report import Decision, Report
from amp.policy import Policy

_UNFUSED = Fusion()


def report_on(
    module: ir.Module,
    parts: Mapping[FunctionUse, UseAnalysis],
    plans: Mapping[FunctionUse, Plan],
    settled: Resolution,
    fusion: Fusion = _UNFUSED,
) -> Report:
    """The report on the plans for a module, and on what was fused afterwards."""
    policy = settled.policy
    assert policy is not None
    weight = {use: part.weight for use, part in parts.items()}
    seconds32 = sum(weight[use] * plan.seconds32 for use, plan in plans.items())
    seconds16 = sum(weight[use] * plan.seconds16 for use, plan in plans.items())
    seconds16 -= fusion.seconds
    fused = fusion.casts_before - fusion.casts_after
    casts_saved = {
        field.name: sum(
            getattr(plan.casts_saved, field.name) for plan in plans.values()
        )
        for field in dataclasses.fields(CastsSaved)
    }
    return Report(
        function=module.main.name,
        dtype=policy.dtype,
        emulated=policy.emulate,
        device=settled.device.name,
        loss_scale=str(policy.loss_scale),
        nodes_total=sum(len(part.graph.nodes) for part in parts.values()),
        nodes_low=sum(len(plans[u].low | p.found.already) for u, p in parts.items()),
        casts=sum(len(plan.casts) for plan in plans.values()) - fused,
        seconds32=seconds32,
        seconds16=seconds16,
        decisions=tuple(_decisions(module, parts, plans)),
        verdict=_verdict(parts, plans, policy, (seconds32, seconds16)),
        measured_share=pricing.measured_share(list(parts.values())),
        casts_spared={**casts_saved, "fused": fused},
        clusters=fusion.clusters,
        fused_seconds=fusion.seconds,
    )


def _verdict(
    parts: Mapping[FunctionUse, UseAnalysis],
    plans: Mapping[FunctionUse, Plan],
    policy: Policy,
    seconds: tuple[float, float],
) -> str:
    if any(plan.low for plan in plans.values()):
        if policy.emulate:
            return "rewritten, emulated: values as in 16 bits, no faster"
        return f"rewritten, predicted {seconds[0] / seconds[1]:.2f}x faster"
    for plan in plans.values():
        for reason in plan.reasons.values():
            if reason.rule == "gain":
                return f"left in float32: {reason.cause}"
    already = any(part.found.already for part in parts.values())
    return "nothing more to convert" if already else "left in float32: no gain"


def _decisions(
    module: ir.Module,
    parts: Mapping[FunctionUse, UseAnalysis],
    plans: Mapping[FunctionUse, Plan],
) -> Iterator[Decision]:
    for use, part in parts.items():
        prefix = "" if part.graph is module.main else f"{part.graph.name}::"
        low = plans[use].low | part.found.already
        for name, reason in plans[use].reasons.items():
            dtype = part.context.format.name if name in low else "float32"
            op = part.graph.nodes[name].op
            yield Decision(f"{prefix}{name}", op, dtype, reason.rule, reason.cause)


def switched_off(module: ir.Module, settled: Resolution) -> Report:
    """The report where the policy comes to nothing on the device."""
    return Report(
        function=module.main.name,
        dtype="",
        emulated=False,
        device=settled.device.name,
        loss_scale="none",
        nodes_total=sum(len(graph.nodes) for graph in module.graphs()),
        nodes_low=0,
        casts=0,
        seconds32=0.0,
        seconds16=0.0,
        decisions=(),
        verdict=settled.reason,
    )
