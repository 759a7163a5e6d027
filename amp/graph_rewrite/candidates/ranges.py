"""Values that the 16-bit type cannot hold, and what must stay float32 for them.

Looks at a typed graph and returns the nodes it refuses, with the reason. No values of a
run are known: constants, counts of terms, and what operations do to ranges are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from amp.graph_rewrite.candidates.context import Context, Format, Typed
from amp.graph_rewrite.graph import ir, op_schema, rounding, shapes
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind, Role, Row
from amp.graph_rewrite.plan import Reason

_SMALLEST_FLOAT32 = 2.0**-126


def ranges(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    context: Context,
    refused: Mapping[str, Reason],
) -> dict[str, Reason]:
    """Refuses what reads or sums to values that the 16-bit type cannot hold.

    Case 1: a constant (an epsilon, a mask of -1e9) that rounds away or to infinity; its
      readers stay float32, and theirs, until a bounded result, a product, or an op that
      is singular there (a division by it) has used it up.
    Case 2: what that singular op gives may be huge (1/sqrt(1e-12)); its readers stay.
    Case 3: the scaled gradient seed (a loss scale may exceed float16's largest value);
      its readers stay.
    Case 4: a sum of more elements than the type, or its kernel, can count.
    Case 5: a sum to a scalar (a loss, a norm), which people and thresholds read.
    Case 6: a bounded result (a probability) beside an epsilon, or where tiny values are
      singular: it may be as tiny, so it is made in float32 too.
    Case 7: products that are summed (a norm, a variance, a gradient by a scale), the
      sum, and statistics computed from it: in float16 a square is infinite from 256
      on, and a product of gradients vanishes as soon; a factor bounded by 1 does no
      harm. All readers of a sum of squares stay, as in case 1.
    """
    found: dict[str, Reason] = {}
    marks: dict[str, _Mark] = {}
    summed = _summed_products(graph, typed) if _is_half(context.format) else {}
    for name in graph.order:
        view = typed[name]
        node = view.node
        if view.facts.kind is Kind.CONSTANT:
            mark = _constant_mark(view, context.format)
            if mark is not None:
                found[name] = Reason("range", name)
        elif node.flag(ir.SEED) and _is_half(context.format):
            mark = _Mark(context.format.largest * 2, name, once=True)
        else:
            mark = _read_mark(view, marks, found)
        if name in summed and mark is None and _squares(view):
            mark = _Mark(context.format.largest * 2, name)
        if mark is not None:
            marks[name] = mark
        if name not in refused and name not in found and view.row is not None:
            reason = _count(graph, view, context)
            if reason is not None:
                found[name] = reason
    if context.format.smallest > _SMALLEST_FLOAT32:
        found = _probabilities(typed, graph.order, marks, context.format) | found
    return {
        name: reason
        for name, reason in (summed | found).items()
        if name not in refused or typed[name].facts.kind is Kind.CONSTANT
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Mark:
    """An output may hold `magnitude`, from `source`; `once`: one reader uses it up."""

    magnitude: float
    source: str
    once: bool = False


def _is_half(limits: Format) -> bool:
    return limits.name == "float16"


def _summed_products(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Products of float32 values that are summed, the sums, and statistics after them.

    Moves may come between. Statistics are what is computed from sums and is no larger.
    """
    products, leads = _products(graph, typed)
    found: dict[str, Reason] = {}
    sums: dict[str, float] = {}  # and what follows: elements
    for name in graph.order:
        view = typed[name]
        row = view.row
        if name in products:
            found[name] = Reason("range", name)
        if row is None or row.role in (Role.KEEP, Role.COMPUTE) or row.bounded:
            continue
        size = shapes.elements(graph.shape((name, 0)) or ())
        for source, _ in view.node.inputs:
            if source in sums and size <= sums[source]:
                found[name], sums[name] = found[source], size
            elif source in found and source not in sums and name in leads:
                found[name] = found[source]
                if row.sums:
                    sums[name] = size
    return found


def _products(graph: ir.Graph, typed: Mapping[str, Typed]) -> tuple[set[str], set[str]]:
    """Products that lead to sums, and the sums and moves that they lead to."""
    products: set[str] = set()
    leads: set[str] = set()
    for name in reversed(graph.order):
        view = typed[name]
        row = view.row
        if row is None or not view.touches(ir.FLOAT):
            continue
        readers = [r for r, _ in graph.readers.get((name, 0), ())]
        onward = any(reader in leads for reader in readers)
        passes = row.role is Role.MOVE or row.kind is Kind.CAST
        if row.sums or (onward and passes):
            leads.add(name)
        elif onward and row.multiplies:
            factors = [typed.get(source) for source, _ in view.node.inputs[:2]]
            if not any(f and f.row and f.row.bounded for f in factors):
                products.add(name)
    return products, leads


def _squares(view: Typed) -> bool:
    if view.facts.kind is Kind.SQUARE:
        return True
    inputs = view.node.inputs
    return view.facts.kind is Kind.PRODUCT and inputs[0] == inputs[1]


def _constant_mark(view: Typed, limits: Format) -> _Mark | None:
    if not view.outs or view.outs[0].type != ir.FLOAT:
        return None
    values = view.node.tensor()
    values = np.zeros(0) if values is None else rounding.distinct(values)
    size = np.abs(values[np.isfinite(values)])
    largest = float(size.max()) if size.size else 0.0
    if largest > limits.largest or 0.0 < largest < limits.smallest:
        return _Mark(largest, view.node.name)
    return None


def _read_mark(
    view: Typed, marks: Mapping[str, _Mark], found: dict[str, Reason]
) -> _Mark | None:
    """Refuses a reader of marked values; what its own result is marked with, if so."""
    node, row = view.node, view.row
    read = [
        (index, marks[edge[0]])
        for index, (edge, slot) in enumerate(zip(node.inputs, view.ins, strict=False))
        if edge[0] in marks and slot.type == ir.FLOAT
    ]
    passes = view.facts.kind is Kind.CAST
    if not read or (not passes and (row is None or row.role is Role.KEEP)):
        return None
    if row is not None:
        found[node.name] = Reason("range", read[0][1].source)
    after = [_after(view, index, mark) for index, mark in read]
    left = [mark for mark in after if mark is not None]
    return min(left, key=lambda mark: mark.once, default=None)


def _after(view: Typed, index: int, mark: _Mark) -> _Mark | None:
    """What a mark on an input makes of the output."""
    row = view.row
    if row is None or row.role is Role.MOVE:
        return mark
    if mark.once or row.bounded or row.role is Role.COMPUTE:
        return None
    if index in row.singular:
        unary = sum(slot.type == ir.FLOAT for slot in view.ins) == 1
        return _Mark(mark.magnitude, mark.source, once=True) if unary else None
    return mark


def _probabilities(
    typed: Mapping[str, Typed],
    order: Iterable[str],
    marks: Mapping[str, _Mark],
    limits: Format,
) -> dict[str, Reason]:
    """Case 6 of `ranges`, from the reader back to where the result is made."""
    found: dict[str, Reason] = {}
    small: dict[str, list[str]] = {}  # by bounded result or copy of one: what it copies
    for name in order:
        view = typed[name]
        row = view.row
        if row is None or not view.touches(ir.FLOAT):
            continue
        sources = [edge[0] for edge in view.node.inputs]
        copied = [source for source in sources if source in small]
        if row.bounded or (copied and row.role is Role.MOVE):
            small[name] = [] if row.bounded else copied
            continue
        epsilons = [s for s in sources if s in marks and _is_epsilon(typed[s], limits)]
        ends = sources if epsilons else [sources[i] for i in row.singular]
        held = [source for source in ends if source in small]
        if held:
            reason = found[name] = Reason("range", (epsilons or [name])[0])
            while held:
                source = held.pop()
                if source not in found:
                    found[source] = reason
                    held += small[source]
    return found


def _is_epsilon(view: Typed, limits: Format) -> bool:
    mark = _constant_mark(view, limits) if view.facts.kind is Kind.CONSTANT else None
    return mark is not None and mark.magnitude < limits.smallest


def _count(graph: ir.Graph, view: Typed, context: Context) -> Reason | None:
    row, limits = view.row, context.format
    assert row is not None
    if row.sums and graph.shape((view.node.name, 0)) == ():
        return Reason("scalar", view.node.name)
    low = _sums_low(row, context)
    if not low and not (row.sums and _is_half(limits)):
        return None
    limit = limits.counts if low else limits.largest
    terms = _terms(graph, view)
    if terms is None and low:
        return Reason("count", f"an unknown number of terms, at most {limit:.0f}")
    if terms is not None and terms > limit:
        return Reason("count", f"{terms:.0f} terms, at most {limit:.0f}")
    return None


def _sums_low(row: Row, context: Context) -> bool:
    """Whether the kernel that will run adds up in the 16-bit type itself.

    TensorFlow's own CPU kernels may; products of a type that the CPU computes run in
    oneDNN, which adds up in float32, as GPU kernels and XLA do.
    """
    if context.xla or context.device_type != "CPU" or context.policy.emulate:
        return False
    if context.native and row.role is Role.COMPUTE:
        return False
    return context.format.name in row.accumulates_low


def _terms(graph: ir.Graph, view: Typed) -> float | None:
    """How many terms each output element sums, None where shapes do not tell.

    Unknown dimensions (a batch) that stay in the output cancel out.
    """
    row = view.row
    assert row is not None
    ins = [graph.shape(edge) for edge in view.node.inputs]
    outs = [graph.shape((view.node.name, i)) for i in range(len(view.outs))]
    data = [shape for shape, slot in zip(ins, view.ins, strict=False) if _float(slot)]
    if not data or not outs or outs[0] is None or any(s is None for s in data):
        return None
    largest = max(data, key=shapes.elements) or ()
    if largest.count(-1) > outs[0].count(-1):
        return None
    out = max(shapes.elements(outs[0]), 1)
    if row.sums:
        return shapes.elements(largest) / out
    equation = view.node.text("equation")
    return arithmetic.flops(row.work, ins, outs, equation) / 2 / out


def _float(slot: op_schema.Slot) -> bool:
    return slot.type == ir.FLOAT
