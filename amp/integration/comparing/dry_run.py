"""The dry run: a function in float32, and what of it would leave a 16-bit range.

Used by `compare`. No twin is made, and nothing is 16-bit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.candidates.context import FORMATS, Format
from amp.graph_rewrite.comparison import observed, wording
from amp.graph_rewrite.comparison.pair import Pair, Watched
from amp.graph_rewrite.comparison.range_report import RangedTensor, RangeReport
from amp.graph_rewrite.comparison.tensor_errors import RangeFigures, range_figures
from amp.graph_rewrite.graph import ir
from amp.integration.comparing import fitted_scale, source_lines
from amp.integration.comparing import traced as traced_lib
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.traced import State, Traced
from amp.integration.runtime import definitions, shape_inference
from amp.loss_scaling.scale import DynamicLossScale
from amp.policy import Policy


def traced(
    fn: Any, args: Sequence[Any], named: Mapping[str, Any], policy: Policy | None
) -> Traced:
    """The function, traced for float16 unless the policy names another type.

    Args, Raises: as those of `traced.traced`.
    """
    policy = Policy.make(policy)
    if policy.dtype == "auto":
        policy = Policy.make(policy, dtype="float16")
    call = traced_lib.traced(fn, args, named, Policy.make(policy, emulate=True))
    return dataclasses.replace(call, notes=())


def look(call: Traced) -> RangeReport:
    """Runs a function in float32 and says what would leave the 16-bit type's range.

    With a dynamic loss scale, gradients are looked at with the largest power of two at
    which none overflows, up to the rule's first scale, as the scale ends there.
    """
    sizes = shape_inference.at_call(call.inputs)
    begun = rewrite_lib.begin(call.module, call.settled, sizes=sizes)
    plain = observed.flat(begun.in_float32(definitions.new_suffix()))
    limits, state = FORMATS[call.policy.dtype], State(call.inputs)
    args = plain.main.args
    variables = frozenset(args[place].name for place in state.places)
    pair = Pair(plain, plain, limits.number, variables)
    watched, scaled, beside = pair.may_be_low(), pair.scaled(), pair.beside()
    rule = call.policy.loss_scale
    with PairedRuns(pair, call.inputs, state) as runs:
        scale = rule.initial
        dynamic = isinstance(rule, DynamicLossScale) and fitted_scale.hold(state, 1.0)
        if dynamic:
            gradients = [each for each in watched if each.edge[0] in scaled]
            found = _figures(pair, gradients, runs, limits)
            top = max((figures.largest for figures in found), default=0.0)
            largest = _power_of_two(limits.largest / top) if top else rule.initial
            scale = min(largest, rule.initial)
            fitted_scale.hold(state, scale)
        figures = [*_figures(pair, watched, runs, limits)]
    lines = functools.partial(_line, call, plain.main)
    tensors = tuple(
        RangedTensor(
            name=each.name,
            op=each.op,
            gradient=each.edge[0] in scaled,
            figures=found,
            line=lines(each.edge) if found.leaves else "",
            beside=each.edge[0] in beside,
        )
        for each, found in zip(watched, figures, strict=True)
    )
    return RangeReport(
        function=wording.function(call.module.main.name),
        dtype=limits.name,
        limit=limits.largest,
        tensors=tensors,
        loss_scale=scale,
        largest_scale=_largest_scale(tensors, scale, limits),
        notes=_notes(call, pair),
    )


def _notes(call: Traced, pair: Pair) -> tuple[str, ...]:
    loops = pair.loops()
    seen = f"seen only at their results: {', '.join(loops[:4])}"
    return (*call.notes, *([seen] if loops else []))


def _figures(
    pair: Pair, watched: Sequence[Watched], runs: PairedRuns, limits: Format
) -> Iterator[RangeFigures]:
    for array in runs.values(pair.plain, [each.edge for each in watched]):
        yield range_figures(array, limits)


def _largest_scale(
    tensors: Sequence[RangedTensor], scale: float, limits: Format
) -> float | None:
    sizes = [tensor.figures.largest for tensor in tensors if tensor.gradient]
    top = max(sizes, default=0.0)
    return _power_of_two(limits.largest * scale / top) if top else None


def _power_of_two(value: float) -> float:
    """The largest power of two that is not larger."""
    return 2.0 ** math.floor(math.log2(value))


def _line(call: Traced, graph: ir.Graph, edge: ir.Edge) -> str:
    """The user's source line of a tensor."""
    return source_lines.line_of_edge(call.concrete.graph, graph, edge)
