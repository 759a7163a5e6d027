"""From candidates to a `Plan`: prices every node and tensor, then lets `assign` choose.

Nothing is changed here, and no rule about ops may enter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from amp.graph_rewrite import assign, cost, ir, op_schema, price
from amp.graph_rewrite.context import Context, Typed, turning
from amp.graph_rewrite.plan import Plan, Reason
from amp.graph_rewrite.propagate import Candidates

_LOW = ":low"  # no node has this name


@dataclasses.dataclass(slots=True)
class _Tensor:
    """A tensor under one name, however many casts the graph already has on it."""

    edge: ir.Edge
    producer: str  # "" where it is float32 for ever, _LOW where 16 bits
    free: bool  # a constant: its cast is folded
    readers: list[str] = dataclasses.field(default_factory=list)  # "" reads float32


def decide(
    graph: ir.Graph, found: Candidates, context: Context, clock: cost.Clock
) -> Plan:
    """Prices the candidates of one graph and chooses among them.

    With `assignment="all"` every candidate is taken, whatever it costs.
    """
    times = price.times(graph, found, context, clock)
    tensors = list(_tensors(graph, found, context))
    already = found.already | {_LOW}
    if context.policy.assignment == "all":
        chosen, tie = frozenset(found.allowed), -math.inf
    else:
        wanted = [_priced(graph, tensor, clock) for tensor in tensors]
        free = {name: times[name] for name in found.allowed}
        chosen = assign.solve(free, already, wanted)
        tie = assign.rounding(free, wanted)

    def seconds(low: frozenset[str], casts: frozenset[tuple[ir.Edge, bool]]) -> float:
        nodes = sum(times[name][name in low] for name in times)
        return nodes + sum(clock.cast(graph.shape(edge)) for edge, _ in casts)

    low = chosen | already
    casts = frozenset(_casts(tensors, low))
    before = frozenset(_casts(tensors, already))
    return Plan(
        dtype=context.format.number,
        low=chosen,
        attrs={
            name: tuple(turning(found.typed[name], context.format.number))
            for name in chosen
        },
        reasons=_reasons(found, chosen, times),
        casts=casts,
        seconds32=seconds(already, before),
        seconds16=seconds(low, casts),
        tie=tie,
    )


def _tensors(graph: ir.Graph, found: Candidates, context: Context) -> Iterator[_Tensor]:
    tensors: dict[ir.Edge, _Tensor] = {}
    numbers = (ir.FLOAT, context.format.number)
    for name, view in found.typed.items():
        if _is_bridge(view, context.format.number):
            continue
        low = name in found.allowed or name in found.already
        for edge, slot in zip(view.node.inputs, view.ins, strict=False):
            if slot.type not in numbers:
                continue
            tensor = _root(edge, slot.type, found, context, tensors)
            tensor.readers.append(name if low and _turns(slot, view) else "")
    for result in graph.results:
        if result.type == ir.FLOAT:
            _root(result.edge, ir.FLOAT, found, context, tensors).readers.append("")
    for name in context.fetched & found.typed.keys():
        for index, slot in enumerate(found.typed[name].outs):
            if slot.type in numbers:
                edge = (name, index)
                _root(edge, slot.type, found, context, tensors).readers.append("")
    for tensor in tensors.values():
        if tensor.producer or any(tensor.readers):
            yield tensor


def _turns(slot: op_schema.Slot, view: Typed) -> bool:
    return view.row is not None and slot.attr in view.row.attrs


def _is_bridge(view: Typed, number: int) -> bool:
    """Whether a node is a cast between float32 and the 16-bit type."""
    if view.node.op != "Cast" or not view.ins:
        return False
    return {view.ins[0].type, view.outs[0].type} == {ir.FLOAT, number}


def _root(
    edge: ir.Edge,
    number: int,
    found: Candidates,
    context: Context,
    tensors: dict[ir.Edge, _Tensor],
) -> _Tensor:
    """The tensor that an edge of type `number` is, or is a cast of."""
    view = found.typed.get(edge[0])
    while view is not None and _is_bridge(view, context.format.number):
        edge, number = view.node.inputs[0], view.ins[0].type
        view = found.typed.get(edge[0])
    if edge not in tensors:
        producer = _LOW if number == context.format.number else ""
        if view is not None and (edge[0] in found.allowed or edge[0] in found.already):
            producer = edge[0] if _turns(view.outs[edge[1]], view) else producer
        constant = view is not None and view.node.op == "Const"
        tensors[edge] = _Tensor(edge, producer, constant)
    return tensors[edge]


def _priced(graph: ir.Graph, tensor: _Tensor, clock: cost.Clock) -> assign.Tensor:
    seconds = clock.cast(graph.shape(tensor.edge))
    down = 0.0 if tensor.free else seconds
    return assign.Tensor(tensor.producer or None, tensor.readers, seconds, down)


def _casts(
    tensors: list[_Tensor], low: frozenset[str]
) -> Iterator[tuple[ir.Edge, bool]]:
    for tensor in tensors:
        made_low = tensor.producer in low
        if made_low and any(reader not in low for reader in tensor.readers):
            yield tensor.edge, False
        read_low = any(reader in low for reader in tensor.readers)
        if not made_low and read_low and not tensor.free:
            yield tensor.edge, True


def _reasons(
    found: Candidates,
    chosen: frozenset[str],
    times: Mapping[str, tuple[float, float]],
) -> dict[str, Reason]:
    reasons = dict(found.refused)
    for name in found.already:
        reasons[name] = Reason("already", name)
    for name, reason in found.allowed.items():
        high, low = times[name]
        figures = f"{high * 1e6:.1f} us in float32, {low * 1e6:.1f} us in 16 bits"
        reasons[name] = reason if name in chosen else Reason("cost", figures)
    return reasons
