"""Prices the nodes of analysed functions: seconds in float32 and in 16 bits.

Applies the cost model to each node's shapes, and prefers measured times; nothing is
chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence

from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.loops import Loops
from amp.graph_rewrite.cost.model import MOST_RATIO, CostModel
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import ir, op_schema, shapes
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind


@dataclasses.dataclass(frozen=True, slots=True)
class PricedUse:
    """One use of a function, with the prices of its nodes and casts for one run.

    Nodes and casts in a loop of TensorFlow 1 have the price of all trips.

    Attributes:
      use_analysis: the use with its candidates.
      cost_model: predicts times on the device that runs it.
      times: seconds in (float32, 16 bits) of every node that has either type.
      rest: seconds of all other nodes together, which no plan changes.
      loops: those that XLA makes, if it compiles the function.
    """

    use_analysis: UseAnalysis
    cost_model: CostModel
    times: Mapping[str, Times]
    rest: float = 0.0
    loops: Loops | None = None

    def cast(self, edge: ir.Edge) -> float:
        """Seconds of the cast of the tensor at an edge."""
        runs = self.use_analysis.runs.get(edge[0], 1)
        size = self.use_analysis.graph.size(edge)
        in_loop = self.loops is not None and self.loops.touch(edge)
        return runs * self.cost_model.cast(size, in_loop)


@dataclasses.dataclass(frozen=True, slots=True)
class Priced:
    """A module's analysis with the prices of every use.

    Attributes:
      analysis: the analysis.
      uses: its uses in the same order, with their prices.
    """

    analysis: Analysis
    uses: Mapping[FunctionUse, PricedUse]

    @property
    def prices_memory(self) -> bool:
        """Whether storing a tensor for the backward pass has a price."""
        return any(one.cost_model.stores for one in self.uses.values())

    def without_memory(self) -> Priced:
        """The same prices, but none for storing tensors."""
        uses = {
            use: dataclasses.replace(one, cost_model=one.cost_model.without_memory())
            for use, one in self.uses.items()
        }
        return dataclasses.replace(self, uses=uses)

    def narrowed(self, analysis: Analysis) -> Priced:
        """The same prices for an analysis with fewer candidates."""
        uses = {
            use: dataclasses.replace(one, use_analysis=analysis.uses[use])
            for use, one in self.uses.items()
        }
        return Priced(analysis, uses)


def cost_models(settled: Resolution) -> Callable[[FunctionUse], CostModel]:
    """Returns the cost model for a use, with the figures of XLA if it compiles it."""
    policy = settled.policy
    assert policy is not None
    dtype, device = policy.dtype, settled.device
    return lambda use: CostModel(device.under(use.xla), dtype)


def price(
    analysis: Analysis, cost_model_of: Callable[[FunctionUse], CostModel]
) -> Priced:
    """Prices every node that has float32 or 16-bit tensors.

    Args:
      analysis: of the module.
      cost_model_of: gives the cost model of a use.
    """
    uses = {}
    for use, one in analysis.uses.items():
        cost_model, loops = cost_model_of(use), None
        if one.context.xla:
            device_type = one.context.device_type
            loops = Loops(one.graph, one.found.typed, device_type)
        seconds = times(one, cost_model, loops)
        rest = _rest(one, cost_model, seconds)
        uses[use] = PricedUse(one, cost_model, seconds, rest, loops)
    return Priced(analysis, uses)


def times(
    use_analysis: UseAnalysis, cost_model: CostModel, loops: Loops | None = None
) -> dict[str, Times]:
    """Seconds in (float32, 16 bits) of every node that has tensors of either type.

    Args:
      use_analysis: the use.
      cost_model: predicts times on the device that runs it.
      loops: those that XLA makes of its nodes, None if it does not compile them.
    """
    found, runs = use_analysis.found, use_analysis.runs
    times = {
        name: _time(use_analysis, view, cost_model)
        if loops is None
        else _compiled(use_analysis, view, cost_model, loops)
        for name, view in found.typed.items()
        if view.touches(ir.FLOAT) or name in found.already
    }
    for name in runs.keys() & times.keys():
        high, low = times[name]
        times[name] = (runs[name] * high, runs[name] * low)
    return times


# The kinds of node that take no time of their own.
_IDLE = (Kind.CONSTANT, Kind.PLACEHOLDER, Kind.NOTHING, Kind.READ_VARIABLE, Kind.SHAPE)


def _rest(
    use_analysis: UseAnalysis, cost_model: CostModel, priced: Container[str]
) -> float:
    """Seconds of the nodes that have neither type: indices, masks, counters, text.

    What Grappler computes beforehand, from constants and shapes, takes none. Nor does
    any under XLA, where they are part of other loops.
    """
    graph, context, total = use_analysis.graph, use_analysis.context, 0.0
    if context.xla:
        return 0.0
    for name, view in use_analysis.found.typed.items():
        row = view.facts
        idle = row.kind in _IDLE or row.work in ("free", "call") or row.in_frames
        if name in priced or idle or not view.outs:
            continue
        if op_instance.constant(graph, (name, 0)) is not None:
            continue
        edges = [*view.node.inputs, *((name, i) for i in range(len(view.outs)))]
        pairs = zip(edges, (*view.ins, *view.outs), strict=False)
        sizes = [graph.size(edge) for edge, slot in pairs if slot.type not in _OPAQUE]
        moved = sum(shapes.elements(size) for size in sizes)
        runs = use_analysis.runs.get(name, 1.0)
        total += runs * cost_model.node(row.work, moved, 0.0)[0]
    return total


# Types of handles and texts, whose elements are not moved.
_OPAQUE = frozenset({ir.RESOURCE, ir.VARIANT, ir.STRING})


def measured_share(priced: Priced) -> float:
    """The part (0 to 1) of the candidates' float32 seconds that was measured."""
    if not any(one.cost_model.measured.times for one in priced.uses.values()):
        return 0.0
    known = every = 0.0
    for one in priced.uses.values():
        for name in one.use_analysis.found.allowed:
            view = one.use_analysis.found.typed[name]
            seconds = one.use_analysis.weight * one.times[name][0]
            every += seconds
            seen = _measured(one.use_analysis, view, one.cost_model)
            known += seconds if seen is not None else 0.0
    return known / every if every else 0.0


def key_of(use_analysis: UseAnalysis, view: Typed, cost_model: CostModel) -> str:
    """The key of a node's op instance, made once per node."""
    keys = cost_model.measured.keys
    if view.node not in keys:
        graph, context = use_analysis.graph, use_analysis.context
        keys[view.node] = op_instance.key(graph, view, context)
    return keys[view.node]


def _measured(
    use_analysis: UseAnalysis, view: Typed, cost_model: CostModel
) -> Times | None:
    if view.node.op not in cost_model.measured.ops:
        return None
    return cost_model.measured.times.get(key_of(use_analysis, view, cost_model))


def _compiled(
    use_analysis: UseAnalysis, view: Typed, cost_model: CostModel, loops: Loops
) -> Times:
    """Seconds of a node where XLA compiles it, with what it moves through memory."""
    name, graph, work = view.node.name, use_analysis.graph, view.facts.work
    if work == "free":
        return 0.0, 0.0
    moved = loops.moved(name)
    if not loops.is_loop(name):
        return cost_model.alone(_time(use_analysis, view, cost_model), moved)
    edges = [*view.node.inputs, *((name, i) for i in range(len(view.outs)))]
    most = max((shapes.elements(graph.size(edge)) for edge in edges), default=0)
    return cost_model.in_loop(work, most, moved)


def _time(use_analysis: UseAnalysis, view: Typed, cost_model: CostModel) -> Times:
    seen = _measured(use_analysis, view, cost_model)
    if seen is not None:
        return seen[0], min(seen[1], MOST_RATIO * seen[0])
    graph, context = use_analysis.graph, use_analysis.context
    node, work = view.node, view.facts.work
    if work == "free":
        return 0.0, 0.0
    ins = [graph.size(edge) for edge in node.inputs]
    outs = [graph.size((node.name, i)) for i in range(len(view.outs))]
    turned_ins = _turning_shapes(ins, view.ins, context)
    turned_outs = _turning_shapes(outs, view.outs, context)
    moved = arithmetic.moved(work, turned_ins, turned_outs)
    if view.facts.kind is Kind.WRITE:
        variables = sum(slot.type == ir.RESOURCE for slot in view.ins)
        rows = _rows(ins, view) if work == "scatter" else 0
        moved += arithmetic.updated(turned_ins, rows, variables)
    equation = node.text("equation") if work == "einsum" else ""
    operations = arithmetic.flops(view.facts, ins, outs, equation)
    return cost_model.node(work, moved, operations)


def _rows(sizes: Sequence[ir.Shape], view: Typed) -> int:
    """The number of indices that a node is given."""
    pairs = zip(sizes, view.ins, strict=False)
    integers = (shape for shape, slot in pairs if slot.type in ir.INTEGERS)
    return max(map(shapes.elements, integers), default=0)


def _turning_shapes(
    sizes: Sequence[ir.Shape], slots: Sequence[op_schema.Slot], context: Context
) -> list[ir.Shape]:
    numbers = (ir.FLOAT, context.format.number)
    pairs = zip(sizes, slots, strict=False)
    return [shape for shape, slot in pairs if slot.type in numbers]
