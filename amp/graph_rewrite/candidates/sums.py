"""Refuses sums of more terms than the 16-bit kernel that will run adds up well.

What a kernel does is a fact of the op's row; how many terms it adds up follows from the
shapes and attributes of its node. `ranges` asks about one node at a time; no rule that
looks at neighbours may enter.
"""

from __future__ import annotations

import math

from amp.graph_rewrite.candidates import stand_ins
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir, op_schema, shapes
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind, Role, Terms, facts
from amp.graph_rewrite.plan import Reason

# How many terms a kernel may add up in 16 bits, so that the error is at most twice that
# of a kernel that adds them up in float32 (the factor of decision 18).
#
# Say u is the error of one rounding relative to what is rounded; roundings are
# independent, so that the squares of errors add up. The terms have been rounded, and
# the sum will be. A kernel that accumulates in 16 bits also rounds every partial sum.
# Squares of the errors in units of u**2, relative to the sum of n terms of equal size:
# - Terms of either sign: the partial sum of k terms is about sqrt(k), the whole
#   sqrt(n). Terms n / n, the sum 1, partial sums (1 + ... + n) / n, about n / 2.
#   2 + n/2 <= 4 * 2 up to n = 12.
# - Terms of one sign: the partial sum of k terms is k, the whole n. Terms n / n**2, the
#   sum 1, partial sums (1 + ... + n**2) / n**2, about n / 3.
#   1 + 1/n + n/3 <= 4 * (1 + 1/n) up to n = 9.
# The size of u cancels out, so that the number is the same for both formats. Sums are
# coarser than all else long before they stop growing (at 256 ones in bfloat16).
TERMS = 9


def too_long(graph: ir.Graph, view: Typed, context: Context) -> Reason | None:
    """Why a node that adds up is to stay float32, None if it may be 16-bit.

    Case 1: a sum to a scalar (a loss, a norm), which is printed or compared.
    Case 2: the kernel accumulates in 16 bits, and it has more than `TERMS` terms, or
      their number may be larger at another call than that which plans are made for.
      Not if another op stands in for it in 16 bits.
    Case 3: more terms than the largest number of the type (float16), each of size 1.
    Case 4: the kernel adds up squares in float16: that of 256 is infinite.
    """
    row, limits = view.row, context.format
    assert row is not None
    if row.sums and graph.size((view.node.name, 0)) == ():
        return Reason("scalar", view.node.name)
    low = stand_ins.accumulates_low(row, context)
    if low and stand_ins.stand_in(graph, view, context) is not None:
        low = False
    if low and row.adds_squares and limits.name == "float16":
        return Reason("range", view.node.name)
    if not low and not (row.sums and limits.name == "float16"):
        return None
    limit = TERMS if low else limits.largest
    terms = _terms(graph, view, graph.shape)
    where = f" in a kernel that accumulates in {limits.name}" if low else ""
    if terms is None and low:
        return Reason("count", f"an unknown number of terms, at most {limit}{where}")
    if graph.sizes is not None:
        terms = max(terms or 0.0, _terms(graph, view, graph.size) or 0.0)
    if terms is not None and terms > limit:
        return Reason("count", f"{terms:.0f} terms, at most {limit:.0f}{where}")
    return None


def sums_nothing(graph: ir.Graph, view: Typed) -> bool:
    """Whether a product has one term for each element: an outer product, say."""
    if view.facts.role is not Role.COMPUTE or view.facts.work == "rnn":
        return False
    terms = _products(view, graph.shape)
    return terms is not None and 0 < terms <= 1


def sums_squares(graph: ir.Graph, view: Typed) -> bool:
    """Whether a product adds up the squares of its operand, each once: a squared norm.

    No product of a matrix with its own transpose, which multiplies each with others.
    """
    edges = view.node.inputs
    if view.facts.role is not Role.COMPUTE or len(edges) != 2 or edges[0] != edges[1]:
        return False
    operand, out = graph.shape(edges[0]), graph.shape((view.node.name, 0))
    if operand is None or out is None:
        return False
    equation = view.node.text("equation")
    flops = arithmetic.flops(view.facts, [operand] * 2, [out], equation)
    return 0 < flops <= 2 * shapes.elements(operand)


def products_added(graph: ir.Graph, view: Typed) -> float | None:
    """How many products each result of one adds up, None if shapes do not tell."""
    return _products(view, graph.shape)


def _terms(graph: ir.Graph, view: Typed, shape: ir.ShapeSource) -> float | None:
    """The number of terms that each output element sums, None if shapes do not tell."""
    node = view.node
    match view.facts.terms:
        case Terms.ALONG:
            return _along(graph, view, shape)
        case Terms.INPUTS:
            return len(node.inputs)
        case Terms.WINDOW:
            return math.prod(node.integers("ksize"))
        case Terms.WINDOWS:
            sizes = zip(node.integers("ksize"), node.integers("strides"), strict=False)
            return math.prod(-(-size // max(stride, 1)) for size, stride in sizes)
        case Terms.NEIGHBOURS:
            return 2 * node.integer("depth_radius", 5) + 1
        case Terms.SCATTERED:
            return _indices(view, shape)
        case Terms.REDUCED:
            return _reduced(view, shape)
        case Terms.PRODUCTS:
            return _products(view, shape)
    return 0


def _reduced(view: Typed, shape: ir.ShapeSource) -> float | None:
    """Input elements to an output element.

    Unknown dimensions (a batch) that are also in the output cancel out.
    """
    largest, out = _largest(view, shape), shape((view.node.name, 0))
    if largest is None or out is None or largest.count(-1) > out.count(-1):
        return None
    return shapes.elements(largest) / max(shapes.elements(out), 1)


def _products(view: Typed, shape: ir.ShapeSource) -> float | None:
    """Products to an output element."""
    largest, out = _largest(view, shape), shape((view.node.name, 0))
    if largest is None or out is None or largest.count(-1) > out.count(-1):
        return None
    row, ins = view.facts, [shape(edge) for edge in view.node.inputs]
    if row.work == "rnn":  # the gradient of a weight sums over all rows of the data
        data = ins[row.weights.data]
        return shapes.elements(data[:-1] if data else None)
    outs = [shape((view.node.name, i)) for i in range(len(view.outs))]
    flops = arithmetic.flops(row, ins, outs, view.node.text("equation"))
    return flops / 2 / max(shapes.elements(out), 1)


def _largest(view: Typed, shape: ir.ShapeSource) -> tuple[int, ...] | None:
    """The shape of the largest operand, None if that of one is not known."""
    pairs = zip(view.node.inputs, view.ins, strict=False)
    data = [shape(edge) for edge, slot in pairs if _float(slot)]
    known = [sizes for sizes in data if sizes is not None]
    if not data or len(known) < len(data):
        return None
    return max(known, key=shapes.elements)


def _along(graph: ir.Graph, view: Typed, shape: ir.ShapeSource) -> float | None:
    """The length of the axis of a running sum."""
    sizes = _largest(view, shape)
    given = graph.nodes.get(view.node.inputs[1][0])
    if sizes is None or given is None or facts(given.op).kind is not Kind.CONSTANT:
        return None
    axis = given.tensor()
    if axis is None or not -len(sizes) <= int(axis) < len(sizes):
        return None
    return sizes[int(axis)] if sizes[int(axis)] >= 0 else None


def _indices(view: Typed, shape: ir.ShapeSource) -> float | None:
    """How many indices there are: all of them may be the same."""
    pairs = zip(view.node.inputs, view.ins, strict=False)
    given = [edge for edge, slot in pairs if slot.type in (ir.INT32, ir.INT64)]
    sizes = shape(given[0]) if given else None
    return None if sizes is None or -1 in sizes else shapes.elements(sizes)


def _float(slot: op_schema.Slot) -> bool:
    return slot.type == ir.FLOAT
