"""Counts arithmetic operations and elements moved, for each `work` of the op table.

Formulas over shapes only; no device and no seconds may enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.shapes import UNKNOWN_DIMENSION, elements
from amp.graph_rewrite.ops.row import Row, Weights


def _product(ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> float:
    # A (m,k) and B (k,n) give C (m,n): |A||B||C| = (mkn)^2, transposed or not.
    if len(ins) < 2:
        return 0.0
    a, b, c = elements(ins[0]), elements(ins[1]), elements(outs[0])
    return 2.0 * math.sqrt(float(a) * b * c)


def _batch_product(ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> float:
    # One matrix product per matrix of the output; input batches may be broadcast.
    if outs[0] is None:
        return _product(ins, outs)
    matrices = [None if shape is None else shape[-2:] for shape in (*ins, outs[0])]
    return elements(outs[0][:-2]) * _product(matrices[:2], matrices[2:])


def _einsum(equation: str, ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> float:
    # One multiply and one add for each combination of values of all labels. An ellipsis
    # stands for the dimensions that its term does not name, counted from the last one.
    terms = equation.replace("->", ",").replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, (*ins, *outs), strict=False):
        first, dots, last = term.partition("...")
        rest = len(shape or ()) - len(first) - len(last)
        if shape is None or rest < 0 or (rest and not dots):
            return _product(ins, outs)
        labels = (*first, *(f"...{i}" for i in range(rest, 0, -1)), *last)
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, size))  # 1 may be broadcast
    return 2.0 * elements(tuple(sizes.values()))


def batched(equation: str) -> bool:
    """Whether an Einsum makes many products, one for each value of some label.

    Those are of the labels, or the ellipsis, that both operands and the output have.
    """
    operands, _, output = equation.partition("->")
    terms = [set(term.replace("...", ".")) for term in (*operands.split(","), output)]
    return len(terms) > 2 and bool(set.intersection(*terms) - {" "})


def _conv(output: ir.Shape, filters: ir.Shape) -> float:
    channels = filters[-1] if filters else 1
    taps = elements(filters) / max(channels if channels > 0 else UNKNOWN_DIMENSION, 1)
    return 2.0 * elements(output) * taps


def of_few_rows(ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> bool:
    """Whether the second operand of a product is its largest tensor.

    Args:
      ins, outs: shapes of every input and output.
    """
    if len(ins) < 2 or not outs:
        return False
    return elements(ins[1]) > max(elements(ins[0]), elements(outs[0]))


# Where the shapes of the image and of the filter of a convolution are: of the inputs,
# and then of the output. Of "conv" a row says where the filter is.
CONVOLUTIONS = {"conv": (0, 1), "conv_grad_input": (-1, 1), "conv_grad_filter": (0, -1)}
# With fewer channels a group, an operation takes about as long as one of a depthwise
# convolution: with 1, 2 and 4 in float32, oneDNN reaches 62, 24 and 77 billion a second
# (AVX512-BF16), with 8, 16 and 64 174, 335 and 474, and without groups 513.
_MANY = 8


def channels_of_few(
    row: Row, ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]
) -> bool:
    """Whether a convolution, channels last, is grouped, with few channels a group.

    Args:
      row: the op's row of the op table, with work of `CONVOLUTIONS`.
      ins, outs: shapes of every input and output.
    """
    places = CONVOLUTIONS[row.work]
    if row.work == "conv":
        places = (places[0], row.weights.numbers[0])
    every = (*ins, *outs[:1])
    if max(places) >= len(every):
        return False
    image, filters = (every[place] for place in places)
    if not image or filters is None or len(filters) < 2:
        return False
    return -1 < filters[-2] < min(_MANY, image[-1])


def _depthwise(ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> float:
    # Each element of the output, or of its gradient, is multiplied with every tap of
    # its channel. The inputs are (input, filter), (sizes, filter, gradient) or (input,
    # sizes, gradient).
    filters = ins[1] if len(ins) > 1 else None
    if filters is None or len(filters) != 4:
        filters = outs[0]
    output = ins[2] if len(ins) > 2 else outs[0]
    return 2.0 * elements(output) * elements(filters[:2] if filters else None)


def _recurrent(weights: Weights, ins: Sequence[ir.Shape]) -> float:
    # Every row of the data, and of the state that goes with it, is multiplied with all
    # weights of its step; biases among them are few.
    data = ins[weights.data]
    used = sum(elements(ins[number]) for number in weights.numbers)
    rows = elements(None if data is None else data[:-1])
    return 2.0 * weights.products * rows * used


_FLOPS: dict[str, Callable[[Sequence[ir.Shape], Sequence[ir.Shape]], float]] = {
    "matmul": _product,
    "batch_matmul": _batch_product,
    # ...Input reads (sizes, filter, gradient), ...Filter (input, sizes, gradient).
    "conv_grad_input": lambda ins, outs: _conv(ins[-1], ins[1]),
    "conv_grad_filter": lambda ins, outs: _conv(ins[-1], outs[0]),
    "depthwise": _depthwise,
    "depthwise_grad_input": _depthwise,
}


def flops(
    row: Row,
    ins: Sequence[ir.Shape],
    outs: Sequence[ir.Shape],
    equation: str = "",
) -> float:
    """The number of multiplies and adds of a matrix product, convolution or the like.

    Args:
      row: the op's row of the op table.
      ins, outs: shapes of every input and output.
      equation: the `equation` attribute of an Einsum.

    Returns:
      The number; 0 for work whose time is that of moving its tensors.
    """
    work, weights = row.work, row.weights
    if not ins or not outs:
        return 0.0
    if work == "einsum":
        return _einsum(equation, ins, outs)
    if max((weights.data, *weights.numbers)) < len(ins):
        if work == "rnn":
            return _recurrent(weights, ins)
        if work == "conv":
            return _conv(outs[0], ins[weights.numbers[0]])
    count = _FLOPS.get(work)
    return count(ins, outs) if count is not None else 0.0


def moved(work: str, ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> int:
    """The number of elements that a node reads and writes.

    Args:
      work: the op's `work` in the op table.
      ins, outs: shapes of the inputs and outputs that would become 16-bit.
    """
    if work == "free":
        return 0
    written = sum(map(elements, outs))
    if work in ("gather", "copy"):  # reads only the elements that it writes
        return 2 * written
    return written + sum(map(elements, ins))


# Elements that are moved in the time of finding one row of a variable.
LOOKUP = 128


def updated(written: Sequence[ir.Shape], rows: int, variables: int) -> int:
    """The number of elements that an update moves in its variables' memory.

    Each variable is read and written where it is updated.

    Args:
      written: shapes of the inputs that say by what, the largest as it is written.
      rows: number of rows that are looked up, 0 if variables are updated as wholes.
      variables: number of variables.
    """
    whole = max(map(elements, written), default=0)
    return 2 * variables * (whole + LOOKUP * rows)


def broadcast_axes(shapes: Sequence[Sequence[int]], which: int) -> list[int]:
    """The axes over which the gradient of a broadcast operand is summed.

    Args:
      shapes: of the two operands.
      which: the number of the one.
    """
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    own = [1] * (rank - len(shapes[which]))
    wide = padded[1 - which]
    return [
        axis
        for axis, size in enumerate(padded[which])
        if axis < len(own) or (size == 1 and wide[axis] != 1)
    ]
