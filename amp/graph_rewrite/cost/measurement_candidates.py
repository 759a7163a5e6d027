"""Lists the op instances of a job that are worth measuring, the most important first.

The choice uses predicted times; nothing is run here, and no plan is made.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.stand_ins import stand_in
from amp.graph_rewrite.cost.device import ITEM
from amp.graph_rewrite.cost.op_instance import (
    Form,
    Instance,
    Operand,
    executor_of,
    operands_of,
    turned_attrs,
)
from amp.graph_rewrite.cost.priced import PricedUse, key_of
from amp.graph_rewrite.graph import ir, shapes

# Instances are listed until they make up this part of the predicted time.
COVERED = 0.98
# An operation predicted to take less than this many times the start of a kernel is not
# listed: in either type, most of its time is the start.
LEAST_STARTS = 1.5


def wanted(uses: Sequence[PricedUse]) -> list[Instance]:
    """The op instances to measure, ordered by predicted float32 seconds per step.

    They are the distinct instances among the candidates of all uses, and casts of about
    the sizes of their tensors, without those too small to matter (`COVERED`,
    `LEAST_STARTS`). The predicted 16-bit times are not used for the choice, because
    measuring is to find out where these are wrong.
    """
    found: dict[str, Instance] = {}
    for use in uses:
        for one in itertools.chain(_of_nodes(use), _of_casts(use)):
            same = found.get(one.key)
            runs = one.runs + (same.runs if same is not None else 0.0)
            found[one.key] = dataclasses.replace(one, runs=runs)
    ordered = sorted(found.values(), key=lambda one: (-one.share, one.key))
    enough = COVERED * sum(one.share for one in ordered)
    before = itertools.accumulate((one.share for one in ordered), initial=0.0)
    return [one for one, seen in zip(ordered, before, strict=False) if seen < enough]


def _matters(seconds: float, use: PricedUse) -> bool:
    return seconds > LEAST_STARTS * use.cost_model.start


def _of_nodes(use: PricedUse) -> Iterator[Instance]:
    """One instance for all nodes of the same key."""
    use_analysis = use.use_analysis
    nodes: dict[str, str] = {}
    runs: dict[str, float] = {}
    for name in use_analysis.found.allowed:
        own = use_analysis.runs.get(name, 1)
        if not _matters(use.times[name][0] / own, use):
            continue
        view = use_analysis.found.typed[name]
        text = key_of(use_analysis, view, use.cost_model)
        if text and view.row is not None:
            nodes[text] = name
            runs[text] = runs.get(text, 0.0) + own
    for text, name in nodes.items():
        one = _of_node(use, name)
        if one is not None:
            every = use_analysis.weight * runs[text]
            yield dataclasses.replace(one, key=text, runs=every)


def _of_node(use: PricedUse, name: str) -> Instance | None:
    """The instance of a node, without its key; None if it cannot be run alone."""
    use_analysis = use.use_analysis
    graph, context = use_analysis.graph, use_analysis.context
    view = use_analysis.found.typed[name]
    operands = operands_of(graph, view, context)
    if operands is None:
        return None
    turned = turned_attrs(view, context)
    outs = [graph.size((name, i)) for i in range(len(view.outs))]
    tensors = [*(operand.shape for operand in operands), *outs]
    single = low_form = _form(view, operands, turned, ir.FLOAT)
    if not use.cost_model.widens:
        low_form = _low_form(use_analysis, view, operands, turned)
    high, low = use.times[name]
    runs = use_analysis.runs.get(name, 1)
    return Instance(
        key="",
        work=use.loads.own[name].work,
        forms=(single, low_form),
        executor=executor_of(context),
        predicted=(high / runs, low / runs),
        runs=runs,
        moved=ITEM["float32"] * sum(map(shapes.elements, tensors)),
    )


def _form(
    view: Typed, operands: Sequence[Operand], turned: frozenset[str], number: int
) -> Form:
    node = view.node.changed(updates=dict.fromkeys(turned, ir.Type(number)))
    pairs = zip(operands, view.ins, strict=True)
    return Form(
        node,
        tuple(
            dataclasses.replace(operand, number=number)
            if slot.attr in turned
            else operand
            for operand, slot in pairs
        ),
    )


def _low_form(
    use_analysis: UseAnalysis,
    view: Typed,
    operands: Sequence[Operand],
    turned: frozenset[str],
) -> Form:
    """The 16-bit form, in the op that stands in for the node's own if there is one."""
    graph, context = use_analysis.graph, use_analysis.context
    number = context.format.number
    form, other = _form(view, operands, turned, number), stand_in(graph, view, context)
    if other is None:
        return form
    axes = Operand((len(other.axes),), ir.INT32, other.axes)
    node = other.node(form.node, number, ("axes", 0))
    return Form(node, (form.operands[0], axes))


def _of_casts(use: PricedUse) -> Iterator[Instance]:
    """Casts of the candidates' output sizes, each rounded to a power of four.

    None under XLA, which fuses a cast with its neighbours.
    """
    use_analysis = use.use_analysis
    if use_analysis.context.xla:
        return
    counts: dict[int, float] = {}
    for name in use_analysis.found.allowed:
        view = use_analysis.found.typed[name]
        for index, slot in enumerate(view.outs):
            shape = use_analysis.graph.size((name, index))
            if slot.type == ir.FLOAT and shape is not None:
                size = 4 ** round(math.log(max(shapes.elements(shape), 1), 4))
                runs = use_analysis.runs_at((name, index))
                counts[size] = counts.get(size, 0.0) + runs
    low = use_analysis.context.format.number
    for size, count in counts.items():
        ends = ((ir.FLOAT, low), (low, ir.FLOAT))
        down, up = (_cast(size, *end) for end in ends)
        seconds = use.cost_model.cast((size,))
        if not _matters(seconds, use):
            continue
        yield Instance(
            key=f"Cast *{size} | {use_analysis.context.format.name} kernels",
            work="cast",
            forms=(down, up),
            executor="kernels",
            predicted=(seconds, seconds),
            runs=use_analysis.weight * count,
            moved=8 * size,
        )


def _cast(size: int, given: int, made: int) -> Form:
    types: dict[str, ir.Value] = {"SrcT": ir.Type(given), "DstT": ir.Type(made)}
    node = ir.Node("cast", "Cast", (), (), "", None, types)
    return Form(node, (Operand((size,), given),))
