"""Makes clusters of casts and elementwise nodes, each compiled by XLA as one loop.

Runs on graphs whose casts are in place. No node changes its type here, and a second
rewrite takes the clusters apart first, so that its decisions do not depend on them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.apply.link import Linked
from amp.graph_rewrite.candidates.context import TypedGraph
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import Priced, PricedUse
from amp.graph_rewrite.fusion import convex_groups, outline
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.fusion.cluster_prices import ClusterPrices
from amp.graph_rewrite.fusion.outline import Outline
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import facts

# Seconds that XLA takes to compile a cluster's function (measured: 50 to 150 ms on a
# CPU for 2 to 16 nodes), and the number of steps in which its calls have to save that
# time.
COMPILE_SECONDS = 0.1
STEPS = 1000
# A function whose sizes differ from call to call is compiled once for each. So many
# sizes are assumed: a few lengths that batches are padded to, or a smaller last batch.
SIZES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Fusion:
    """Counts of what fusion did, for the report.

    Attributes:
      clusters: number of calls made.
      functions: number of functions that they call, each compiled once.
      nodes: number of nodes in the clusters.
      casts_before, casts_after: casts that run as kernels without and with clusters.
      seconds: predicted saving per step.
    """

    clusters: int = 0
    functions: int = 0
    nodes: int = 0
    casts_before: int = 0
    casts_after: int = 0
    seconds: float = 0.0

    def plus(self, other: Fusion) -> Fusion:
        """The sums of both."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Fusion(*map(operator.add, mine, theirs))


@dataclasses.dataclass(frozen=True, slots=True)
class Fusing:
    """How clusters are made.

    Attributes:
      device: has the figures to price them; `compiled.call` is the time of a call.
      suffix: ending of new functions' names.
      fixed: whether only such clusters are made as have the same sizes at every call.
    """

    device: Device
    suffix: str
    fixed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """The module with its clusters, and the counts."""

    linked: Linked
    fusion: Fusion


def unfuse(module: ir.Module) -> ir.Module:
    """The module without clusters: readers of their calls read the nodes again."""
    functions = {name: outline.unfuse(g) for name, g in module.functions.items()}
    return ir.Module(outline.unfuse(module.main), functions)


def unfused(module: ir.Module) -> Fused:
    """The module as given, for a rewrite that changes nothing."""
    return Fused(Linked(module, {}), Fusion())


def _compiles(device: Device) -> bool:
    """Whether the device has a figure for the call of a compiled cluster."""
    return device.under(True).call != math.inf


def fused(
    linked: Linked,
    priced: Priced,
    typed: Mapping[FunctionUse, TypedGraph],
    fusing: Fusing,
) -> Fused:
    """The module with clusters, if the device has a figure for their calls.

    Args:
      linked: the graphs that were made.
      priced: the analysis and prices that the graphs were made from.
      typed: the rewritten functions.
      fusing: how clusters are made.
    """
    if not _compiles(fusing.device):
        return Fused(linked, Fusion())
    uses = {use: priced.uses[use] for use in linked.graphs}
    made = {use: typed[linked.made_use(use)] for use in uses}
    return fuse(linked, uses, made, fusing)


def fuse(
    linked: Linked,
    uses: Mapping[FunctionUse, PricedUse],
    made: Mapping[FunctionUse, TypedGraph],
    fusing: Fusing,
) -> Fused:
    """Makes clusters where they are faster than kernels::

        in each graph that XLA does not compile:
          groups = convex groups of fusible nodes with equal numbers of elements
          in a GraphDef's main graph: split a group that a run would read part of
          outline each, with copies of the casts to float32 and constants that it reads
        for each distinct outline, over all graphs:
          make a function and calls of it, if the calls are clearly faster than kernels
            and save the time to compile the function, for as many sizes as are
            assumed, within `STEPS` steps

    Args:
      linked: the graphs, casts in place.
      uses: the priced use that each graph was made from.
      made: the graphs with the types of their nodes.
      fusing: how clusters are made.
    """
    members = {
        use: Members(one)
        for use, one in made.items()
        if not use.xla and not one.context.policy.emulate
    }
    found = {
        use: list(_clusters(one, uses[use].cost_model, fusing))
        for use, one in members.items()
    }
    weights = {use: one.use_analysis.weight for use, one in uses.items()}
    names = _named(found, weights, linked.module, fusing.suffix)
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


def _counted(
    part: Members, kept: Sequence[_Cluster], idle: frozenset[str], weight: float
) -> Fusion:
    casts = part.bridges
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
    """A cluster that is faster than its kernels, and the seconds it saves per run."""

    outline: Outline
    seconds: float


def _named(
    found: Mapping[FunctionUse, Sequence[_Cluster]],
    weights: Mapping[FunctionUse, float],
    module: ir.Module,
    suffix: str,
) -> dict[Any, str]:
    """The name of each function that is worth compiling, by the key of its outlines."""
    saved: dict[Any, float] = defaultdict(float)
    compiled: dict[Any, int] = {}
    for use, clusters in found.items():
        for one in clusters:
            key = one.outline.key
            saved[key] += one.seconds * weights[use]
            sizes = 1 if one.outline.fixed else SIZES
            compiled[key] = max(compiled.get(key, 1), sizes)
    names: dict[Any, str] = {}
    for key, seconds in saved.items():
        if seconds * STEPS > COMPILE_SECONDS * compiled[key]:
            name = f"amp_cluster_{len(names) + 1}{suffix}"
            while name in module.functions:  # the name is from an earlier rewrite
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
    members: Members, kernels: CostModel, fusing: Fusing
) -> Iterator[_Cluster]:
    """The clusters of one graph that are clearly faster than their nodes' kernels."""
    graph = members.graph
    if any(facts(op).in_frames for op in graph.ops):
        return
    fusible = {name for name in graph.nodes if members.fusible(name)}
    groups = convex_groups.convex(graph.order, list(members.links(fusible)))
    prices = ClusterPrices(members, kernels, fusing.device)
    named: dict[str, list[str]] = defaultdict(list)
    for name in graph.order:
        if name in fusible:
            named[groups[name]].append(name)
    for names in _run_as_one(members, named.values()):
        if not _casts(members, names):
            continue
        group = set(names)
        gives = tuple((name, 0) for name in names if members.given(group, name))
        if gives:
            made = outline.outline(
                graph, tuple(names), members.copied, gives, members.type_of
            )
            if fusing.fixed and not made.fixed:
                continue
            saved = prices.saved(names, made)
            if len(made.body) > 1 and saved > 0:
                yield _Cluster(made, saved)


def _run_as_one(
    members: Members, groups: Iterable[Sequence[str]]
) -> Iterator[Sequence[str]]:
    """The groups, such that no run of a session needs more because they run as one.

    A session executes part of a graph, where a prediction needs no label. Who reads a
    group depends on all that it depends on, or the group is split into those nodes that
    depend on the same. Sources never become fewer along a path, so that each part is
    convex too.
    """
    if members.graph.name:  # a call of a function runs all that is needed
        yield from groups
        return
    found = members.sources
    for names in groups:
        needed = functools.reduce(operator.or_, (found[name] for name in names))
        if all(needed & ~found[name] == 0 for name in members.waiting_for(set(names))):
            yield names
            continue
        parts: dict[int, list[str]] = defaultdict(list)
        for name in names:
            parts[found[name]].append(name)
        yield from parts.values()


def _casts(members: Members, names: Iterable[str]) -> bool:
    """Whether there is a cast among the nodes or the nodes that they read.

    Groups without a cast are left alone: all-float32 groups are no matter of mixed
    precision, and in all-16-bit groups XLA's code converts to float32 and back for each
    node, just as kernels do.
    """
    if not members.bridges.isdisjoint(names):
        return True
    inputs = (members.graph.nodes[name].inputs for name in names)
    return any(source in members.ups for edges in inputs for source, _ in edges)
