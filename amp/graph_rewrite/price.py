"""What each node of a graph costs: seconds in float32 and in 16 bits.

Brings a node's shapes and a clock together; nothing is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp.graph_rewrite import cost, ir, op_schema
from amp.graph_rewrite.context import Context, Typed
from amp.graph_rewrite.propagate import Candidates


def times(
    graph: ir.Graph, found: Candidates, context: Context, clock: cost.Clock
) -> dict[str, tuple[float, float]]:
    """Seconds in (float32, 16 bits) of every node that touches either."""
    return {
        name: _time(graph, view, context, clock)
        for name, view in found.typed.items()
        if view.touches(ir.FLOAT) or name in found.already
    }


def _time(
    graph: ir.Graph, view: Typed, context: Context, clock: cost.Clock
) -> tuple[float, float]:
    node, row = view.node, view.row
    ins = [graph.shape(edge) for edge in node.inputs]
    outs = [graph.shape((node.name, i)) for i in range(len(view.outs))]
    work = "elementwise" if row is None else row.work
    turned_ins = _turning_shapes(ins, view.ins, context)
    turned_outs = _turning_shapes(outs, view.outs, context)
    moved = cost.moved(work, turned_ins, turned_outs)
    return clock.node(work, moved, cost.flops(work, ins, outs, node.text("equation")))


def _turning_shapes(
    shapes: Sequence[ir.Shape], slots: Sequence[op_schema.Slot], context: Context
) -> list[ir.Shape]:
    numbers = (ir.FLOAT, context.format.number)
    pairs = zip(shapes, slots, strict=False)
    return [shape for shape, slot in pairs if slot.type in numbers]
