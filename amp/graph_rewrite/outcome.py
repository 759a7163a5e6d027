"""The report on a rewrite: what was decided, counted and told.

Nothing is decided here; what a report is, is `report`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp.graph_rewrite import ir, price
from amp.graph_rewrite.control_flow import Use
from amp.graph_rewrite.device import Resolution
from amp.graph_rewrite.plan import Plan
from amp.graph_rewrite.program import Part
from amp.graph_rewrite.report import Decision, Report


def report_on(
    module: ir.Module,
    parts: Mapping[Use, Part],
    plans: Mapping[Use, Plan],
    settled: Resolution,
    verdict: str,
) -> Report:
    """The report on the plans for a module."""
    policy = settled.policy
    assert policy is not None
    weight = {use: part.weight for use, part in parts.items()}
    return Report(
        function=module.main.name,
        dtype=policy.dtype,
        emulated=policy.emulate,
        device=settled.device.name,
        loss_scale=str(policy.loss_scale),
        nodes_total=sum(len(part.graph.nodes) for part in parts.values()),
        nodes_low=sum(len(plans[u].low | p.found.already) for u, p in parts.items()),
        casts=sum(len(plan.casts) for plan in plans.values()),
        seconds32=sum(weight[use] * plan.seconds32 for use, plan in plans.items()),
        seconds16=sum(weight[use] * plan.seconds16 for use, plan in plans.items()),
        decisions=tuple(_decisions(module, parts, plans)),
        verdict=verdict,
        measured_share=price.measured_share(list(parts.values())),
    )


def _decisions(
    module: ir.Module, parts: Mapping[Use, Part], plans: Mapping[Use, Plan]
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
