"""`joined`: one report on several graphs of a file, of which each was rewritten alone.

Sums and names only; what was decided is in the reports given, and nothing is planned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from amp.graph_rewrite import figures
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.report import Report


def joined(reports: Mapping[str, Report]) -> Report:
    """One report on several functions of a file.

    Args:
      reports: at least one, by the names of the functions; "" is the main graph.
    """
    every = list(reports.values())
    if len(every) == 1 and "" in reports:
        return every[0]
    first = every[0]
    measured = sum(one.seconds32 * one.measured_share for one in every)
    before = sum(one.seconds32 for one in every)
    kinds = dict.fromkeys(kind for one in every for kind in one.casts_spared)
    return dataclasses.replace(
        first,
        function="",
        dtype=first.dtype,
        nodes_total=sum(one.nodes_total for one in every),
        nodes_low=sum(one.nodes_low for one in every),
        casts=sum(one.casts for one in every),
        casts_spared={
            kind: sum(one.casts_spared.get(kind, 0) for one in every) for kind in kinds
        },
        clusters=sum(one.clusters for one in every),
        fused_seconds=sum(one.fused_seconds for one in every),
        seconds32=before,
        seconds16=sum(one.seconds16 for one in every),
        measured_share=measured / before if before else 0.0,
        decisions=tuple(_decisions(reports)),
        made_for={k: v for one in every for k, v in one.made_for.items()},
        sizes_assumed=tuple(
            dict.fromkeys(name for one in every for name in one.sizes_assumed)
        ),
        verdict=_verdict(every),
    )


def _decisions(reports: Mapping[str, Report]) -> Iterator[Decision]:
    """All decisions, their nodes named after the functions that were rewritten."""
    first = 0
    for function, report in reports.items():
        prefix = f"{function}::" if function else ""
        for one in report.decisions:
            reads = tuple(first + place for place in one.reads)
            node = f"{prefix}{one.node}"
            yield dataclasses.replace(one, node=node, reads=reads)
        first += len(report.decisions)


def _verdict(every: Sequence[Report]) -> str:
    """How many functions are rewritten and what they gain, or why none is."""
    done = [one for one in every if one.nodes_low]
    if not done:
        return "; ".join(dict.fromkeys(one.verdict for one in every))
    if len(every) == 1:
        return every[0].verdict
    count = f"rewritten, {len(done)} of {len(every)} functions"
    if every[0].emulated:
        return f"{count}, emulated: values as in 16 bits, no faster"
    before = sum(one.seconds32 for one in done)
    after = sum(one.seconds16 for one in done)
    return f"{count}, predicted {figures.gain(before, after)}"
