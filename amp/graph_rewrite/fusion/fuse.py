"""Fusion of what is left: casts and elementwise arithmetic into loops of XLA's.

Runs on graphs whose casts are in place. No node changes its type here, and no other
node its result's place: what a second rewrite decides does not depend on it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.apply.link import Linked
from amp.graph_rewrite.candidates.context import Context
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.fusion import convex_groups, outline
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.fusion.outline import Outline
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize.variable_reads import redirected
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import TABLE, Kind, facts

# The most that a cluster may take of its time as kernels. Prices are estimates, and do
# not know that a kernel may write over its operand, where a compiled call may not.
CLEARLY = 0.8
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


def bypassed(linked: Linked) -> Linked:
    """The graphs with what reads an IdentityN reading what that passes on.

    Keras hands all gradients to an optimizer through one (a custom gradient, which only
    matters to who differentiates): it would stand between every cast and the update.
    """
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


def fuse(
    linked: Linked,
    contexts: Mapping[FunctionUse, Context],
    weights: Mapping[FunctionUse, float],
    clocks: Mapping[FunctionUse, CostModel],
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
      contexts: as in planning, with a schema for every op.
      weights: how often each graph runs a step.
      clocks: times of kernels, with what was measured of this job.
      device: what to price clusters by; `compiled.call` says what starting one costs.
      suffix: ending of new functions' names.
    """
    parts = {
        use: Members(graph, contexts[use])
        for use, graph in linked.graphs.items()
        if not use.xla and not contexts[use].policy.emulate
    }
    found = {
        use: list(_clusters(part, clocks[use], device)) for use, part in parts.items()
    }
    names = _named(found, weights, linked.module, suffix)
    graphs = dict(linked.graphs)
    functions: dict[str, ir.Graph] = {}
    total = Fusion()
    for use, part in parts.items():
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
            saved = _saved(members, names, made, (kernels, device))
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


def _saved(
    members: Members,
    names: Sequence[str],
    made: Outline,
    prices: tuple[CostModel, Device],
) -> float:
    """Seconds that a cluster saves, 0 if that is not clear.

    As kernels, what each node and each cast costs. As a cluster, the start of the call
    and then the longer of two times: moving what it reads and gives, and the arithmetic
    of each node in XLA's code.
    """
    kernels, device = prices
    compiled = device.under(True)
    loop = CostModel(compiled, members.context.format.name)
    group = set(names)
    read = {e[0] for name in names for e in members.graph.nodes[name].inputs}
    ups = [name for name in sorted(read) if members.only_for(name, group)]
    before = sum(_seconds(members, name, kernels) for name in (*names, *ups))
    border = sum(
        shapes.elements(shape) * _ITEM.get(number, 4)
        for shape, number in zip(made.sizes, made.types, strict=True)
    )
    inside = sum(_seconds(members, name, loop, loop=True) for name in (*names, *ups))
    after = compiled.call + max(border / device.bandwidth, inside)
    return before - after if after < CLEARLY * before else 0.0


_ITEM = {ir.FLOAT: 4, ir.HALF: 2, ir.BFLOAT16: 2, ir.BOOL: 1}


def _seconds(
    members: Members, name: str, clock: CostModel, *, loop: bool = False
) -> float:
    """Seconds of one node; in a loop a cast is arithmetic like any other."""
    graph, node = members.graph, members.graph.nodes[name]
    if members.is_bridge(name) and not loop:
        return clock.cast(graph.shape(node.inputs[0]))
    low, row = members.context.format.number, TABLE.get(node.op)
    signature = members.signature(name)
    pairs = zip(node.inputs, signature.ins, strict=True)
    ins = [graph.shape(e) for e, slot in pairs if slot.type in (ir.FLOAT, low)]
    outs = [graph.shape((name, 0))]
    work = "elementwise" if row is None else row.work
    high, short = clock.node(work, arithmetic.moved(work, ins, outs), 0.0)
    in16 = low in signature.types and not members.is_bridge(name)
    return short if in16 else high
