"""Refuses nodes whose values the 16-bit type may not be able to represent.

No values of a run are known: the rules use constants, numbers of terms, and what the
op table says about ranges. Follows values from function to function as `call_values`
tells.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping

import numpy as np

from amp.graph_rewrite.candidates import sums
from amp.graph_rewrite.candidates.call_values import CallValues
from amp.graph_rewrite.candidates.context import Context, Format, Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.graph import ir, rounding, shapes
from amp.graph_rewrite.graph.calls import FunctionUse, UseEdge
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_SMALLEST_FLOAT32 = 2.0**-126


def ranges(
    graphs: Mapping[FunctionUse, ir.Graph],
    contexts: Mapping[FunctionUse, Context],
    eligible: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
) -> dict[FunctionUse, dict[str, Reason]]:
    """Refuses nodes with values that the 16-bit type cannot represent.

    Case 1: a constant (an epsilon, a mask of -1e9) that rounds to 0 or to infinity. Its
      readers stay float32, and theirs, up to a bounded op, a product, or an op that is
      singular at this input (a division by it). If only some of its values round to 0,
      that matters where it is divided by, or what it multiplies is.
    Case 2: the result of such a singular op may be huge (1/sqrt(1e-12)); its readers
      stay float32.
    Case 3: the scaled gradient seed, as a loss scale may exceed float16's largest
      value; its readers stay float32.
    Case 4: a sum of more terms than the type, or its kernel, adds up well (`sums`):
      more at the call that plans are made for, or, where the kernel accumulates in 16
      bits, a number that may be larger at another call.
    Case 5: a sum to a scalar (a loss, a norm), which is printed or compared (`sums`).
    Case 6: a bounded result (a probability), or a matrix product of such results, added
      to an epsilon, or the input of an op that is singular there: it may be as small as
      the epsilon, so the ops that compute it stay float32 too.
    Case 7: products that are summed (a norm, a variance, the gradient of a scale), the
      sum, and statistics computed from it: in float16 a square overflows from 256 on,
      and products of small gradients underflow. Not if a factor is bounded by 1. All
      readers of a sum of squares stay float32, as in case 1. One node may be both.

    A mask or an epsilon may be made in one function and read in another, so the cases
    hold across loops and branches. Each function is looked at again for what another
    one gives it, until nothing is new.

    Args:
      graphs: every use's graph, callers first.
      contexts: of each use.
      eligible: its candidates; what is refused in them is not looked at.
      call_values: the tensors that pass between functions.
    """
    links: dict[UseEdge, list[UseEdge]] = defaultdict(list)
    for before, after in _links(call_values):
        links[before].append(after)
    given: dict[FunctionUse, dict[ir.Edge, _Mark]] = {use: {} for use in graphs}
    found: dict[FunctionUse, dict[str, Reason]] = {}
    pending = dict.fromkeys(graphs)
    while pending:
        use = next(iter(pending))
        del pending[use]
        one = graphs[use], eligible[use], contexts[use]
        found[use], marks = _in_graph(*one, given[use])
        for edge, mark in marks.items():
            for at, place in links.get((use, edge), ()):
                if place not in given[at]:
                    given[at][place] = mark
                    pending[at] = None
    return found


def _links(call_values: CallValues) -> Iterator[tuple[UseEdge, UseEdge]]:
    """Edges of different functions of which one may have the value of the other."""
    for arg, source in call_values.alias.items():
        yield source, arg
    for value in call_values.carried:
        for before in value.read:
            yield from ((before, made) for made in value.made)


def _in_graph(
    graph: ir.Graph,
    part: Candidates,
    context: Context,
    given: Mapping[ir.Edge, _Mark],
) -> tuple[dict[str, Reason], dict[ir.Edge, _Mark]]:
    """What `ranges` refuses in one graph, and the marks of its edges.

    Args:
      graph: one function.
      part: its candidates.
      context: of the use.
      given: the marks of edges that other functions give.
    """
    typed, refused = part.typed, part.refused
    found: dict[str, Reason] = {}
    marks = dict(given)
    half = _is_half(context.format)
    summed = _summed_products(graph, typed) if half else {}
    divisors = _divisors(graph, typed)
    for name in graph.order:
        view = typed[name]
        node = view.node
        if view.facts.kind is Kind.CONSTANT:
            mark = _constant_mark(view, context.format, divisors)
            if mark is not None:
                found[name] = Reason("range", name)
        elif half and node.flag(ir.SEED):
            mark = _Mark(context.format.largest * 2, name, once=True)
        else:
            mark = _read_mark(view, marks, found) if marks else None
        if name in summed and mark is None and _squares(view):
            mark = _Mark(context.format.largest * 2, name)
        if mark is not None:
            marks |= {(name, index): mark for index in range(len(view.outs))}
        settled = name in refused or name in found or name in summed
        if not settled and view.row is not None:
            reason = sums.too_long(graph, view, context)
            if reason is not None:
                found[name] = reason
    if context.format.smallest > _SMALLEST_FLOAT32:
        found = _probabilities(graph, typed, marks, context.format) | found
    reasons = {
        name: reason
        for name, reason in (summed | found).items()
        if name not in refused or typed[name].facts.kind is Kind.CONSTANT
    }
    return reasons, marks


@dataclasses.dataclass(frozen=True, slots=True)
class _Mark:
    """Values out of range on an edge.

    Attributes:
      magnitude: their size.
      source: the node that they come from, for the reason.
      once: whether only the direct readers have to stay float32.
    """

    magnitude: float
    source: str
    once: bool = False


def _is_half(limits: Format) -> bool:
    return limits.name == "float16"


def _summed_products(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Case 7: float32 products that are summed, the sums, and statistics of them.

    There may be moves between product and sum. Statistics are nodes downstream of a sum
    with no more elements than it.
    """
    products, leads = _products(graph, typed)
    found: dict[str, Reason] = {}
    sizes: dict[str, float] = {}  # number of elements of each sum and statistic
    for name in graph.order:
        view = typed[name]
        row = view.row
        if name in products:
            found[name] = Reason("range", name)
            if row is not None and row.role is Role.COMPUTE:  # the sum as well
                sizes[name] = shapes.elements(graph.shape((name, 0)) or ())
        if row is None or row.role in (Role.KEEP, Role.COMPUTE) or row.bounded:
            continue
        size = shapes.elements(graph.shape((name, 0)) or ())
        for source, _ in view.node.inputs:
            if source in sizes and size <= sizes[source]:
                found[name], sizes[name] = found[source], size
            elif (
                source in found
                and (source not in sizes or source in products)
                and name in leads
            ):
                found[name] = found[source]
                if row.sums:
                    sizes[name] = size
    return found


def _products(graph: ir.Graph, typed: Mapping[str, Typed]) -> tuple[set[str], set[str]]:
    """The products that are summed, and the sums and the moves in between."""
    products: set[str] = set()
    leads: set[str] = set()
    for name in reversed(graph.order):
        view = typed[name]
        row = view.row
        if row is None or not view.float32:
            continue
        readers = [r for r, _ in graph.readers.get((name, 0), ())]
        onward = any(reader in leads for reader in readers)
        passes = row.role is Role.MOVE or row.kind is Kind.CAST
        if row.sums or (onward and passes):
            leads.add(name)
        elif sums.sums_squares(graph, view) or (onward and _grows(view, typed)):
            products.add(name)
    return products, leads


def _grows(view: Typed, typed: Mapping[str, Typed]) -> bool:
    """Whether a node multiplies two factors of which none is bounded by 1."""
    factors = [source for source, _ in view.node.inputs[:2]]
    return view.facts.multiplies and not any(_bounded(f, typed) for f in factors)


def _bounded(name: str, typed: Mapping[str, Typed]) -> bool:
    """Whether what a node computes, or casts, is bounded by 1."""
    while name in typed and typed[name].facts.kind is Kind.CAST:
        name = typed[name].node.inputs[0][0]
    row = typed[name].row if name in typed else None
    return row is not None and row.bounded


def _squares(view: Typed) -> bool:
    if view.facts.kind is Kind.SQUARE:
        return True
    inputs, row = view.node.inputs, view.facts
    multiplies = row.kind is Kind.PRODUCT or row.role is Role.COMPUTE
    return multiplies and inputs[0] == inputs[1]


def _divisors(graph: ir.Graph, typed: Mapping[str, Typed]) -> set[str]:
    """The nodes of whose result a zero stays one up to an op that is singular there."""
    found: set[str] = set()
    for name in reversed(graph.order):
        view = typed[name]
        row, sources = view.row, [edge[0] for edge in view.node.inputs]
        if row is None:
            if name in found and view.facts.kind is Kind.CAST:
                found.update(sources)
            continue
        found.update(sources[index] for index in row.singular if index < len(sources))
        if name in found and (row.role is Role.MOVE or row.multiplies):
            found.update(sources)
    return found


def _constant_mark(
    view: Typed, limits: Format, divisors: Container[str]
) -> _Mark | None:
    if not view.outs or view.outs[0].type != ir.FLOAT:
        return None
    values = view.node.tensor()
    values = np.zeros(0) if values is None else rounding.distinct(values)
    size = np.abs(values[np.isfinite(values) & (values != 0.0)])
    if not size.size:
        return None
    name, largest, least = view.node.name, float(size.max()), float(size.min())
    if largest > limits.largest or largest < limits.smallest:
        return _Mark(largest, name)
    if least < limits.smallest and name in divisors:
        return _Mark(least, name)
    return None


def _read_mark(
    view: Typed, marks: Mapping[ir.Edge, _Mark], found: dict[str, Reason]
) -> _Mark | None:
    """Refuses a node that reads marked values, and returns the mark of its result."""
    node, row = view.node, view.row
    read = [
        (index, marks[edge])
        for index, edge in enumerate(node.inputs)
        if edge in marks and view.ins[index].type == ir.FLOAT
    ]
    passes = view.facts.kind is Kind.CAST
    if not read or (not passes and (row is None or row.role is Role.KEEP)):
        return None
    if row is not None:
        found[node.name] = Reason("range", read[0][1].source)
    after = [_after(view, index, mark) for index, mark in read]
    remaining = [mark for mark in after if mark is not None]
    return min(remaining, key=lambda mark: mark.once, default=None)


def _after(view: Typed, index: int, mark: _Mark) -> _Mark | None:
    """The mark of a node's output, given the mark of one input."""
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
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    marks: Mapping[ir.Edge, _Mark],
    limits: Format,
) -> dict[str, Reason]:
    """Case 6 of `ranges`: walks from the reader back to the op that computes it."""
    found: dict[str, Reason] = {}
    small: dict[str, list[str]] = {}  # such results, copies and products: of what
    for name in graph.order:
        view = typed[name]
        row = view.row
        if row is None or not view.float32:
            continue
        sources = [edge[0] for edge in view.node.inputs]
        copied = [source for source in sources if source in small]
        makes = row.bounded or row.vanishes
        if makes or (copied and row.role in (Role.MOVE, Role.COMPUTE)):
            small[name] = [] if makes else copied
            continue
        epsilons = [
            marks[edge].source
            for edge in view.node.inputs
            if edge in marks
            and (edge[0] not in typed or typed[edge[0]].facts.kind is Kind.CONSTANT)
            and marks[edge].magnitude < limits.smallest
        ]
        ends = sources if epsilons else [sources[i] for i in row.singular]
        pending = [source for source in ends if source in small]
        if pending:
            reason = found[name] = Reason("range", (epsilons or [name])[0])
            while pending:
                source = pending.pop()
                if source not in found:
                    found[source] = reason
                    pending += small[source]
    return found
