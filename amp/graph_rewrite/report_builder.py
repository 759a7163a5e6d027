"""Makes the `Report` of a rewrite from its plans, prices and clusters.

Nothing is decided here; `report` defines the attributes and their text.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from amp.graph_rewrite import figures
from amp.graph_rewrite.assign.gain import seconds_of
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.cost.priced import Priced, measured_share
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.fusion.fuse import Fused
from amp.graph_rewrite.graph import ir, op_schema, shapes
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize.sizes import Sized
from amp.graph_rewrite.ops import allowable, op_table, structure
from amp.graph_rewrite.ops.row import Kind
from amp.graph_rewrite.outcomes import Prices
from amp.graph_rewrite.plan import CastsSaved, Plan, Reason
from amp.graph_rewrite.report import Report


@dataclasses.dataclass(frozen=True, slots=True)
class _Seconds:
    """Predicted seconds of a step in float32, and as planned."""

    before: float
    after: float


def report_on(
    every: Priced,
    priced: Priced,
    plans: Mapping[FunctionUse, Plan],
    made: Fused,
    settled: Resolution,
    sized: Sized,
) -> Report:
    """Makes the report of a rewrite.

    Args:
      every: the module's analysis and prices.
      priced: the same without what the nominee leaves out.
      plans: the plan of each use.
      made: the rewritten module, and the counts of its clusters.
      settled: policy and device.
      sized: which sizes were taken from a call, and which were assumed.
    """
    policy = settled.policy
    assert policy is not None
    uses, fusion = priced.analysis.uses, made.fusion
    main = next(iter(uses.values())).graph
    before, after = seconds_of(plans, priced)
    seconds = _Seconds(before, after - fusion.seconds)
    fused = fusion.casts_before - fusion.casts_after
    casts_saved = {
        field.name: sum(
            getattr(plan.casts_saved, field.name) for plan in plans.values()
        )
        for field in dataclasses.fields(CastsSaved)
    }
    return Report(
        function=main.name,
        dtype=policy.dtype,
        emulated=policy.emulate,
        device=settled.device.name,
        device_source=settled.device.source,
        loss_scale=str(policy.loss_scale),
        nodes_total=sum(len(one.graph.nodes) for one in uses.values()),
        nodes_low=sum(len(plans[u].low | o.found.already) for u, o in uses.items()),
        casts=sum(len(plan.casts) for plan in plans.values()) - fused,
        seconds32=seconds.before,
        seconds16=seconds.after,
        decisions=tuple(_decisions(priced, plans)),
        verdict=_verdict(priced, plans, made, seconds),
        measured_share=measured_share(every),
        casts_spared={**casts_saved, "fused": fused},
        clusters=fusion.clusters,
        fused_seconds=fusion.seconds,
        made_for={name: list(shape or ()) for name, shape in sized.given.items()},
        sizes_assumed=tuple(
            dict.fromkeys([*(name for name, _ in sized.assumed), *sized.hidden])
        ),
    )


def prices(priced: Priced, plans: Mapping[FunctionUse, Plan]) -> Prices:
    """What plans cost by the prices of a module, for `Report.repriced`.

    Args:
      priced: the module's analysis and prices.
      plans: the plan of each use; they may have been made by other prices.
    """
    weight = {use: one.weight for use, one in priced.analysis.uses.items()}
    nodes: dict[str, list[tuple[float, float]]] = {}
    for use, prefix in _prefixes(priced):
        for name, (high, low) in priced.uses[use].times.items():
            times = weight[use] * high, weight[use] * low
            nodes.setdefault(f"{prefix}{name}", []).append(times)
    before, after = seconds_of(plans, priced)
    return Prices(before, after, measured_share(priced), nodes)


def _prefixes(priced: Priced) -> Iterator[tuple[FunctionUse, str]]:
    """Every use, with what its nodes' names begin with in a report."""
    graphs = {use: one.use_analysis.graph for use, one in priced.uses.items()}
    main = next(iter(graphs.values()))
    for use, graph in graphs.items():
        yield use, "" if graph is main else f"{graph.name}::"


def _verdict(
    priced: Priced,
    plans: Mapping[FunctionUse, Plan],
    made: Fused,
    seconds: _Seconds,
) -> str:
    uses = priced.analysis.uses
    gain = figures.gain(seconds.before, seconds.after)
    if any(plan.low for plan in plans.values()):
        if next(iter(uses.values())).context.policy.emulate:
            return "rewritten, emulated: values as in 16 bits, no faster"
        return f"rewritten, predicted {gain}"
    if made.linked.graphs:
        return f"rewritten in float32, predicted {gain}"
    for plan in plans.values():
        for reason in plan.reasons.values():
            if reason.rule in ("gain", "unscaled", "searched", "zeroed"):
                return f"left in float32: {reason.cause}"
    if next(iter(uses.values())).context.policy.emulate and any(
        reason.rule == "cost"
        for plan in plans.values()
        for reason in plan.reasons.values()
    ):
        return "nothing is rounded: 16 bits would gain nothing, even on an A100"
    already = any(one.found.already for one in uses.values())
    return "nothing more to convert" if already else "left in float32: no gain"


def _decisions(priced: Priced, plans: Mapping[FunctionUse, Plan]) -> Iterator[Decision]:
    """One decision for each node with a reason, the nodes of each use together."""
    first = 0
    for use, prefix in _prefixes(priced):
        times = priced.uses[use].times
        one, plan = priced.uses[use].use_analysis, plans[use]
        low = plan.low | one.found.already
        places = {name: first + i for i, name in enumerate(plan.reasons)}
        first += len(places)
        for name, reason in plan.reasons.items():
            node = one.graph.nodes[name]
            read = dict.fromkeys([source for source, _ in node.inputs])
            elements, sizes = _sizes(one, name)
            high, low16 = times.get(name, (0.0, 0.0))
            yield Decision(
                node=f"{prefix}{name}",
                op=node.op,
                dtype=one.context.format.name if name in low else "float32",
                rule=reason.rule,
                cause=reason.cause,
                seconds32=one.weight * high,
                seconds16=one.weight * low16,
                elements=elements,
                reads=tuple([places[source] for source in read if source in places]),
                sizes=sizes,
                change=_change(node.op, reason),
            )


# Kinds of node that hold or hand on what was float32 before.
_HELD = (Kind.CONSTANT, Kind.PLACEHOLDER, Kind.VARIABLE, Kind.READ_VARIABLE)


def _change(op: str, reason: Reason) -> str:
    """What would change a node, where that is not said of the rule as a whole.

    That is a node that the white-list leaves out, if `allow` would not change it, and a
    value past float16's range that is no constant.

    Returns:
      A key of `explanation.CHANGES`, "" for that of the reason's rule.
    """
    if reason.rule == "range" and op_table.facts(op).kind is not Kind.CONSTANT:
        return "overflow"
    if reason.rule not in ("unlisted", "listed"):
        return ""
    if op in structure.PYTHON:
        return "python"
    if op_table.facts(op).kind in _HELD:
        return "held"
    if allowable.refusal(op):
        return "settled"
    # Of an unlisted op the cause says if it has no kernel.
    return "kernel" if reason.rule == "unlisted" and reason.cause != op else ""


def _sizes(one: UseAnalysis, name: str) -> tuple[int, str]:
    """The elements of a node's floating results, and its floating sizes as text."""
    view, graph = one.found.typed[name], one.graph
    floats = (ir.FLOAT, one.context.format.number)
    pairs = zip(view.node.inputs, view.ins, strict=False)
    ins = tuple([graph.size(edge) for edge, slot in pairs if slot.type in floats])
    made = enumerate(view.signature.made)
    outs = tuple([graph.size((name, index)) for index, kind in made if kind in floats])
    return sum(map(shapes.elements, outs)), _sizes_text(ins, outs)


@functools.lru_cache(maxsize=4096)
def _sizes_text(ins: tuple[ir.Shape, ...], outs: tuple[ir.Shape, ...]) -> str:
    """Sizes as "4x8, 8x2 -> 4x2"."""
    text = ", ".join(map(_size, outs))
    return f"{', '.join(map(_size, ins))} -> {text}" if ins else text


def _size(shape: ir.Shape) -> str:
    """A shape as "4x8"; unknown dimensions as "?"."""
    if shape is None:
        return "?"
    return "x".join("?" if size < 0 else str(size) for size in shape) or "scalar"


def switched_off(module: ir.Module, settled: Resolution) -> Report:
    """The report if mixed precision is off for this policy and device."""
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


def called_elsewhere(
    module: ir.Module, settled: Resolution, device: str, why: str
) -> Report:
    """The report on a function that is called on a device that no plan is made for.

    Args:
      module: the function, which runs as it is.
      settled: the policy.
      device: the name of the device that the function is called on.
      why: what is known of that device.
    """
    cause = f"called on {device}: {why}"
    return left(module, settled, "device", cause)


def left(module: ir.Module, settled: Resolution, rule: str, cause: str) -> Report:
    """The report on a function that runs as it is, for a reason that needs no plan.

    Args:
      module: the function.
      settled: policy and device.
      rule: the name of the rule that leaves each of its nodes in float32.
      cause: what made the rule apply.
    """
    assert settled.policy is not None
    reason = f"left in float32: {cause}"
    report = switched_off(module, dataclasses.replace(settled, reason=reason))
    lookup = op_schema.lookup_of(module)
    return dataclasses.replace(
        report,
        dtype=settled.policy.dtype,
        loss_scale=str(settled.policy.loss_scale),
        decisions=tuple(
            Decision(f"{prefix}{node.name}", node.op, "float32", rule, cause)
            for graph in module.graphs()
            for prefix in ("" if graph is module.main else f"{graph.name}::",)
            for node in graph.nodes.values()
            if (known := lookup(node.op)) is not None
            and ir.FLOAT in known.signature(node).types
        ),
    )
