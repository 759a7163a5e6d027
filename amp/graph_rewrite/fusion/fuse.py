"""Fusion of what is left: casts and elementwise arithmetic into loops of XLA's.

Runs on graphs whose casts are in place. No node changes its type here, and no other
node its result's place: what a second rewrite decides does not depend on it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.apply.link import Linked
from amp.graph_rewrite.candidates.context import Context
from amp.graph_rewrite.cost.device import Device, Resolution
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import Priced, PricedUse
from amp.graph_rewrite.fusion import convex_groups, outline
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.fusion.cluster_prices import ClusterPrices
from amp.graph_rewrite.fusion.outline import Outline
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize.variable_reads import redirected
from amp.graph_rewrite.ops.op_table import Kind, facts

# What XLA takes to compile a cluster, which alike ones share, and the steps in which
# that has to be won back. Measured: 50 to 150 ms on a CPU for 2 to 16 nodes.
COMPILE_SECONDS = 0.1
STEPS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Fusion:
    """What fusing did.

    Attributes:
      clusters: calls that were made.
      functions: functions that they call, each compiled once.
      nodes: nodes that the calls compute.
      casts_before, casts_after: casts between the types that run as kernels.
      seconds: predicted to be saved a step.
    """

    clusters: int = 0
    functions: int = 0
    nodes: int = 0
    casts_before: int = 0
    casts_after: int = 0
    seconds: float = 0.0

    def plus(self, other: Fusion) -> Fusion:
        """Both, added up."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Fusion(*map(operator.add, mine, theirs))


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """The module with its clusters, and what they are."""

    linked: Linked
    fusion: Fusion


def unfuse(module: ir.Module) -> ir.Module:
    """The module with every cluster's nodes back in place of its call."""
    functions = {name: outline.unfuse(g) for name, g in module.functions.items()}
    return ir.Module(outline.unfuse(module.main), functions)


def unfused(module: ir.Module) -> Fused:
    """A module as it was given, in which nothing was made and so nothing fused."""
    return Fused(Linked(module, {}), Fusion())


def bypassed(linked: Linked, settled: Resolution) -> Linked:
    """The graphs with what reads an IdentityN reading what that passes on.

    Keras hands all gradients to an optimizer through one (a custom gradient, which only
    matters to who differentiates): it would stand between every cast and the update.
    Where the device makes no clusters, the graphs are left as they are.
    """
    if not _compiles(settled.device):
        return linked
    graphs = {use: _bypassed(graph) for use, graph in linked.graphs.items()}
    return Linked(_replaced(linked, graphs, {}), graphs)


def _bypassed(graph: ir.Graph) -> ir.Graph:
    same: dict[ir.Edge, ir.Edge] = {}
    for name in graph.order:
        node = graph.nodes[name]
        bundle = facts(node.op).kind is Kind.BUNDLE
        if bundle and not node.controls and not node.flag(ir.UNSCALE):
            for index, edge in enumerate(node.inputs):
                same[name, index] = same.get(edge, edge)
    return redirected(graph, same)


def _compiles(device: Device) -> bool:
    """Whether it is known what starting a compiled cluster costs."""
    return device.under(True).call != math.inf


def fused(linked: Linked, priced: Priced, settled: Resolution, suffix: str) -> Fused:
    """The module with clusters, where the device is known to gain by any.

    Args:
      linked: the graphs that were made, as `bypassed` leaves them.
      priced: what they were made of.
      settled: policy and device.
      suffix: ending of new functions' names.
    """
    if not _compiles(settled.device):
        return Fused(linked, Fusion())
    uses = {use: priced.uses[use] for use in linked.graphs}
    return fuse(linked, uses, settled.device, suffix)


def fuse(
    linked: Linked,
    uses: Mapping[FunctionUse, PricedUse],
    device: Device,
    suffix: str,
) -> Fused:
    """Makes clusters in every graph that was rewritten, where the device gains by it::

        in each graph that kernels run:
          groups = convex groups of elementwise nodes of as many elements
          outline each, with the casts up and constants that it reads
        for each outline, over all graphs:
          make a function and calls of it, if they are clearly faster than kernels and
            win back what the function takes to compile

    Args:
      linked: the graphs, casts in place.
      uses: what each graph was made of, with the times of kernels on this device.
      device: what to price clusters by; `compiled.call` says what starting one costs.
      suffix: ending of new functions' names.
    """
    contexts = _contexts(linked, uses)
    members = {
        use: Members(graph, contexts[use])
        for use, graph in linked.graphs.items()
        if not use.xla and not contexts[use].policy.emulate
    }
    found = {
        use: list(_clusters(one, uses[use].cost_model, device))
        for use, one in members.items()
    }
    weights = {use: one.use_analysis.weight for use, one in uses.items()}
    names = _named(found, weights, linked.module, suffix)
    graphs = dict(linked.graphs)
    functions: dict[str, ir.Graph] = {}
    total = Fusion()
    for use, part in members.items():
        kept = [one for one in found[use] if one.outline.key in names]
        idle = part.idle({name for one in kept for name in one.outline.members})
        total = total.plus(_counted(part, kept, idle, weights[use]))
        if kept:
            graphs[use] = _called(part.graph, kept, names, idle)
        for one in kept:
            name = names[one.outline.key]
            functions[name] = outline.function(one.outline, name)
    module = _replaced(linked, graphs, functions)
    total = dataclasses.replace(total, functions=len(functions))
    return Fused(Linked(module, graphs), total)


def _contexts(
    linked: Linked, uses: Mapping[FunctionUse, PricedUse]
) -> dict[FunctionUse, Context]:
    """As in planning, with a schema for the functions that were made."""
    lookup = op_schema.lookup_of(linked.module)
    return {
        use: dataclasses.replace(one.use_analysis.context, lookup=lookup)
        for use, one in uses.items()
    }


def _counted(
    part: Members, kept: Sequence[_Cluster], idle: frozenset[str], weight: float
) -> Fusion:
    casts = {name for name in part.graph.nodes if part.is_bridge(name)}
    return Fusion(
        clusters=len(kept),
        nodes=sum(len(one.outline.body) for one in kept),
        casts_before=len(casts),
        casts_after=len(casts - idle),
        seconds=weight * sum(one.seconds for one in kept),
    )


def _replaced(
    linked: Linked,
    graphs: Mapping[FunctionUse, ir.Graph],
    functions: Mapping[str, ir.Graph],
) -> ir.Module:
    main, merged = linked.module.main, {**linked.module.functions, **functions}
    for use, graph in graphs.items():
        if linked.graphs[use] is linked.module.main:
            main = graph
        else:
            merged[graph.name] = graph
    return ir.Module(main, merged)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Cluster:
    """Nodes that may run as one, and the seconds that it saves."""

    outline: Outline
    seconds: float


def _named(
    found: Mapping[FunctionUse, Sequence[_Cluster]],
    weights: Mapping[FunctionUse, float],
    module: ir.Module,
    suffix: str,
) -> dict[Any, str]:
    """A name for each function that is worth compiling, by the outlines' key."""
    saved: dict[Any, float] = defaultdict(float)
    for use, clusters in found.items():
        for one in clusters:
            saved[one.outline.key] += one.seconds * weights[use]
    names: dict[Any, str] = {}
    for key, seconds in saved.items():
        if seconds * STEPS > COMPILE_SECONDS:
            name = f"amp_cluster_{len(names) + 1}{suffix}"
            while name in module.functions:  # of an earlier rewrite
                name += "_"
            names[key] = name
    return names


def _called(
    graph: ir.Graph,
    clusters: Sequence[_Cluster],
    names: Mapping[Any, str],
    idle: frozenset[str],
) -> ir.Graph:
    calls: dict[str, tuple[Outline, str]] = {}
    for one in clusters:
        name = f"{one.outline.members[-1]}/amp_cluster"
        while name in graph.nodes:
            name += "_"
        calls[name] = (one.outline, names[one.outline.key])
    return outline.with_calls(graph, calls, idle)


def _clusters(
    members: Members, kernels: CostModel, device: Device
) -> Iterator[_Cluster]:
    """The clusters of one graph that are clearly faster than their nodes' kernels."""
    graph = members.graph
    if any(facts(node.op).in_frames for node in graph.nodes.values()):
        return
    fusible = {name for name in graph.nodes if members.fusible(name)}
    groups = convex_groups.convex(graph.nodes, list(members.links(fusible)))
    named: dict[str, list[str]] = defaultdict(list)
    for name in graph.order:
        if name in fusible:
            named[groups[name]].append(name)
    for names in named.values():
        group = set(names)
        gives = tuple((name, 0) for name in names if members.given(group, name))
        if gives and _casts(members, names):
            made = outline.outline(
                graph, tuple(names), members.copied, gives, members.type_of
            )
            prices = ClusterPrices(members, kernels, device)
            saved = prices.saved(names, made)
            if len(made.body) > 1 and saved > 0:
                yield _Cluster(made, saved)


def _casts(members: Members, names: Iterable[str]) -> bool:
    """Whether there is a cast among the nodes or what they read.

    Without one they are all float32, which mixed precision leaves alone, or all 16-bit,
    which XLA's code converts to float32 and back as kernels do.
    """
    inputs = (members.graph.nodes[name].inputs for name in names)
    reads = {source for edges in inputs for source, _ in edges}
    return any(map(members.is_bridge, names)) or any(map(members.is_up, reads))
