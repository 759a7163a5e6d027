"""`amp.compare`: what a function and its twin compute, on the same inputs and state.

Has both sides run and puts the figures together. How a bound or a figure is computed is
`graph_rewrite.comparison`'s to say, not this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp.graph_rewrite.comparison import alone, causes, wording
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.comparison import Comparison, Parting
from amp.graph_rewrite.comparison.range_report import RangeReport
from amp.graph_rewrite.ops.op_table import facts
from amp.integration.comparing import dry_run as dry_run_lib
from amp.integration.comparing import fitted_scale, source_lines, traced
from amp.integration.comparing import suggest as suggest_lib
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.sides import Sides
from amp.integration.comparing.traced import Traced
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
      policy: the policy, `Policy()` by default.
      suggest: a relative error of the results and gradients; the nodes to keep in
        float32 for it are searched for.
      dry_run: whether only float32 runs, and what would leave the range of the 16-bit
        type (float16 unless the policy says so) is listed: a `RangeReport`.

    Returns:
      A `Comparison`, which prints as a table.

    Raises:
      GraphError: a graph that is not well formed, or called from within another.
      PolicyError: an unknown op, a pattern that matches nothing, an unknown target.
    """
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
        kernels = _kernels(sides, runs)
        found = bound if bound is None else suggest_lib.suggestion(sides, runs, bound)
        notes = _notes(sides, runs)
    by_name = {kernel.name: kernel for kernel in kernels}
    seen = causes.Seen(sides.pair, watched, tensors, by_name, sides.format)
    wrong = sorted((k for k in kernels if k.wrong), key=lambda kernel: -kernel.error)
    return Comparison(
        function=wording.function(call.module.main.name),
        dtype=sides.format.name,
        tensors=tensors,
        parting=_parting(call, seen),
        kernels=tuple(wrong),
        kernels_checked=len(kernels),
        loss_scale=None if scale is None else scale.scale,
        loss_scale_note="" if scale is None else scale.note,
        suggestion=found,
        notes=tuple(notes),
    )


def _kernels(sides: Sides, runs: PairedRuns) -> list[KernelError]:
    """The 16-bit nodes by themselves; none where kernels are float32's."""
    if sides.call.policy.emulate:
        return []
    module, beside = alone.with_float32_beside(sides.pair)
    arrays = runs.values(module, [edge for each in beside for edge in each.edges])
    kind, name = sides.call.settled.device.kind, sides.format.name
    native = name in sides.call.settled.device.native
    return [
        alone.kernel_error(
            each,
            arrays,
            sides.format,
            low=name in facts(each.op).adds_up_low(kind, native=native),
        )
        for each in beside
    ]


def _parting(call: Traced, seen: causes.Seen) -> Parting | None:
    first = causes.first_parted(seen.tensors)
    if first is None:
        return None
    cause, text = causes.cause(seen, first)
    graph, edge = seen.pair.plain.main, seen.watched[first].edge
    line = source_lines.line_of_edge(call, graph, edge)
    return Parting(first, line, cause, text)


def _notes(sides: Sides, runs: PairedRuns) -> list[str]:
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
    loops = sides.pair.loops()
    if loops:
        notes.append(f"seen only at their results: {_listed(loops)}")
    return notes


def _listed(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return f"{', '.join(found[:4])}{more}"
