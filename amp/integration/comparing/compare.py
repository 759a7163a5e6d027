"""`amp.compare`: what a function and its twin compute, on the same inputs and state.

Has both sides run and puts the figures together. How a bound or a figure is computed is
`graph_rewrite.comparison`'s to say, not this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp.errors import UsageError
from amp.graph_rewrite.comparison import causes, wording
from amp.graph_rewrite.comparison.comparison import Comparison, Parting
from amp.graph_rewrite.comparison.range_report import RangeReport
from amp.integration.comparing import (
    called_functions,
    fitted_scale,
    kernels,
    source_lines,
    traced,
)
from amp.integration.comparing import dry_run as dry_run_lib
from amp.integration.comparing import suggest as suggest_lib
from amp.integration.comparing.called_functions import Part
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.sides import Sides
from amp.integration.comparing.traced import Traced
from amp.integration.runtime import definitions
from amp.policy import Policy


def compare(
    fn: Any,
    *inputs: Any,
    policy: Policy | None = None,
    suggest: float | None = None,
    dry_run: bool = False,
) -> Comparison | RangeReport:
    """Runs a function and its twin on the same inputs, and compares their tensors.

    Variables are as they were afterwards, so that no training step is taken. Where the
    device has no arithmetic in the 16-bit type, the twin is emulated.

    Args:
      fn: a tf.function or callable (traced with `inputs`), or a ConcreteFunction.
      *inputs: what it is called with.
      policy: the policy; by default that of the `AMP_*` variables.
      suggest: a relative error of the results and gradients; the nodes to keep in
        float32 for it are searched for.
      dry_run: whether only float32 runs, and what would leave the range of the 16-bit
        type (float16 unless the policy says so) is listed: a `RangeReport`.

    Returns:
      A `Comparison`, which prints as a table.

    Raises:
      GraphError: a graph that is not well formed, or called from within another.
      PolicyError: an unknown op, a pattern that matches nothing, an unknown target.
      UsageError: `suggest` together with `dry_run`, which finds no error of results.
    """
    if dry_run and suggest is not None:
        raise UsageError(
            f"dry_run=True was given with suggest={suggest}",
            where="amp.compare",
            allowed="either: float32 alone has no error to suggest nodes for",
            remedy="leave out one or the other",
        )
    if dry_run:
        return dry_run_lib.look(dry_run_lib.traced(fn, inputs, {}, policy))
    return of_call(traced.traced(fn, inputs, {}, policy), suggest)


def of_call(call: Traced, bound: float | None = None) -> Comparison:
    """Compares the sides of a function for one call of it.

    Args:
      call: the function and its arguments.
      bound: the error to suggest nodes for, None for no suggestion.
    """
    sides = Sides(call)
    with PairedRuns(sides.pair, sides.call.inputs, sides.state) as runs:
        watched = sides.pair.watched()
        gradients = [each.twin for each in watched if each.role == "gradient"]
        rule = sides.call.policy.loss_scale
        scale = fitted_scale.fitted(rule, sides.pair.twin, gradients, runs)
        tensors = sides.tensors(sides.pair, watched, runs)
        tensors = sides.without_noise(tensors, watched, runs)
        checked = kernels.checked(sides.call, sides.pair, runs.values)
        parts = [Part(sides.pair, watched, tensors, checked)]
        parts += called_functions.parts(sides, runs)
        found = bound if bound is None else suggest_lib.suggestion(sides, runs, bound)
        notes = _notes(sides, runs, parts)
    every = [kernel for part in parts for kernel in part.kernels]
    wrong = sorted((k for k in every if k.wrong), key=lambda kernel: -kernel.error)
    rows = _in_order(parts)
    return Comparison(
        function=wording.function(call.module.main.name),
        dtype=sides.format.name,
        tensors=tuple(part.tensors[place] for part, place in rows),
        parting=_parting(sides, rows),
        kernels=tuple(wrong),
        kernels_checked=len(every),
        loss_scale=None if scale is None else scale.scale,
        loss_scale_note="" if scale is None else scale.note,
        suggestion=found,
        notes=tuple(notes),
    )


def _in_order(parts: Sequence[Part]) -> list[tuple[Part, int]]:
    """All tensors in the order of the graph; those inside a call before its results.

    Returns:
      For each the part that it is in, and its place there.
    """
    order = {name: place for place, name in enumerate(parts[0].pair.plain.main.order)}
    rows = []
    for part in parts:
        inside = order.get(part.node, -1) - 0.5 if part.node else None
        for place, each in enumerate(part.watched):
            rank = order.get(each.edge[0], -1) if inside is None else inside
            rows.append((rank, part, place))
    rows.sort(key=lambda row: row[0])
    return [(part, place) for _, part, place in rows]


def _parting(sides: Sides, rows: Sequence[tuple[Part, int]]) -> Parting | None:
    parted = (i for i, (part, place) in enumerate(rows) if part.tensors[place].parted)
    first = next(parted, None)
    if first is None:
        return None
    part, place = rows[first]
    by_name = {kernel.name: kernel for kernel in part.kernels}
    found = part.pair, part.watched, part.tensors, by_name, sides.format, part.given
    cause, text = causes.cause(causes.Seen(*found), place)
    if part.parted:
        text += f"; in trip {part.parted} of {part.node}"
    graph, edge = part.pair.plain.main, part.watched[place].edge
    traced_as = definitions.traced_graph(graph.name) if part.node else None
    traced_as = traced_as or sides.call.concrete.graph
    line = source_lines.line_of_edge(traced_as, graph, edge)
    if part.node and not line:
        whole = sides.pair.plain.main
        line = source_lines.line_of_edge(
            sides.call.concrete.graph, whole, (part.node, 0)
        )
    return Parting(first, line, cause, text)


def _notes(sides: Sides, runs: PairedRuns, parts: Sequence[Part]) -> list[str]:
    """What the figures hold for, and what they do not show."""
    notes = [*sides.call.notes]
    if sides.forced:
        notes.append(
            "the cheapest plan converts nothing here; compared is what "
            "AMP_ASSIGNMENT=all converts"
        )
    taken = [edge[0] for edge, _ in runs.taken.tensors]
    if taken:
        notes.append(f"drawn once, and given to both sides: {_listed(taken)}")
    if runs.taken.unpaired:
        text = "may have drawn other values on either side, so that figures mislead"
        notes.append(f"{_listed(runs.taken.unpaired)} {text}")
    called = parts[1:]
    cut = [part.node for part in called if part.trips == called_functions.TRIPS]
    if cut:
        text = f"looked into for their first {called_functions.TRIPS} trips"
        notes.append(f"{text}: {_listed(cut)}")
    hidden = {*sides.pair.loops()} - {part.node for part in called}
    hidden |= {name for part in called for name in part.pair.loops()}
    if hidden:
        notes.append(f"seen only at their results: {_listed(sorted(hidden))}")
    return notes


def _listed(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return f"{', '.join(found[:4])}{more}"
