"""`report_on_run`: cuts a report on a session's graph down to what one run executes.

A plan is made for all of a graph that the runs of a session share: initializers, a
training step, an evaluation. Used by `run_plans`; nothing is planned or run here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from amp.graph_rewrite import figures
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.graph import bridges, calls, ir
from amp.graph_rewrite.report import Report

OTHERS = "left in float32: what the plan changes is in other runs of the graph"


@dataclasses.dataclass(frozen=True, slots=True)
class Executed:
    """What a run executes.

    Attributes:
      nodes: the names of the nodes of the user's graph.
      functions: the number of nodes of each function that these reach, by its name.
      casts: casts that the rewrite added.
      clusters: calls of clusters.
    """

    nodes: frozenset[str]
    functions: Mapping[str, int]
    casts: int
    clusters: int


def added(module: ir.Module) -> tuple[int, int]:
    """The casts and the calls of clusters that a rewrite added to a module.

    Args:
      module: what a run executes, as rewritten.
    """
    graphs = [calls.graph_of(module, use) for use in calls.uses_with_weights(module)]
    nodes = [(graph.name, n) for graph in graphs for n in graph.nodes.values()]
    clusters = [node for _, node in nodes if node.has(ir.CLUSTER)]
    inside = {name for node in clusters for name in node.functions("f")}
    casts = [node for graph, node in nodes if graph not in inside and _is_added(node)]
    return len(casts), len(clusters)


def _is_added(node: ir.Node) -> bool:
    return bridges.is_any(node) and "/amp_to_" in node.name


def report_on_run(report: Report, executed: Executed) -> Report:
    """The report on a run of a graph, from the one on the graph.

    Its nodes, bytes, casts and clusters are those that the run executes. The predicted
    times of these nodes are added up; casts, clusters and nodes without floating
    tensors, which are not priced one by one, share in the total in proportion.

    Args:
      report: on the plan of the graph.
      executed: what the run executes.
    """
    decisions = tuple(_kept(report.decisions, executed))
    low = sum(one.dtype != "float32" for one in decisions)
    total = len(executed.nodes) + sum(executed.functions.values())
    before = report.seconds32 * _share(report, decisions, lambda one: one.seconds32)
    after = report.seconds16 * _share(report, decisions, lambda one: one.seconds)
    after = after if low else before
    share = executed.clusters / report.clusters if report.clusters else 0.0
    every = report.nodes_total
    return dataclasses.replace(
        report,
        nodes_total=total,
        nodes_low=low,
        casts=report.casts if report.emulated else executed.casts,
        casts_spared={},  # known of the graph only
        clusters=executed.clusters,
        fused_seconds=report.fused_seconds * min(1.0, share),
        seconds32=before,
        seconds16=after,
        decisions=decisions,
        verdict=_verdict(report, low, figures.gain(before, after)),
        part=f"what the run executes, {total} of the graph's {every} nodes",
    )


def _kept(decisions: Sequence[Decision], executed: Executed) -> Iterator[Decision]:
    """The decisions on what is executed, with the places that they read."""
    wanted = [at for at, one in enumerate(decisions) if _runs(one, executed)]
    places = {old: new for new, old in enumerate(wanted)}
    for old in wanted:
        reads = tuple(places[at] for at in decisions[old].reads if at in places)
        yield dataclasses.replace(decisions[old], reads=reads)


def _runs(decision: Decision, executed: Executed) -> bool:
    function, inside, name = decision.node.rpartition("::")
    return function in executed.functions if inside else name in executed.nodes


def _share(
    report: Report, kept: Iterable[Decision], seconds: Callable[[Decision], float]
) -> float:
    """The part of the graph's priced nodes that some of them are, by their seconds."""
    every = sum(map(seconds, report.decisions))
    return sum(map(seconds, kept)) / every if every else 1.0


def _verdict(report: Report, low: int, gain: str) -> str:
    if not report.nodes_low:
        return report.verdict
    if not low:
        return OTHERS
    return report.verdict if report.emulated else f"rewritten, predicted {gain}"
