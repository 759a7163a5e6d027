"""What nodes do, by which the cost model predicts their times: elements and operations.

Counted once for each use of a function, from the sizes of its tensors. No seconds and
no device may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.unmoved import moves_nothing
from amp.graph_rewrite.graph import ir, op_schema, shapes
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind


class Load(NamedTuple):
    """What a node does in one run, by which the model predicts its time.

    Attributes:
      work: the op's `work` in the op table.
      moved: elements read and written.
      operations: arithmetic operations.
      op: of the node; "" if it stands for several.
    """

    work: str
    moved: int
    operations: float
    op: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Loads:
    """What the nodes of a use do; the same for any cost model.

    Attributes:
      own: of each node that has a float32 or 16-bit tensor.
      rest: of the other nodes, each with its runs in one run of the use.
      spared: the same of what only the function as given has to do.
    """

    own: Mapping[str, Load]
    rest: Sequence[tuple[float, Load]]
    spared: Sequence[tuple[float, Load]]


def loads_of(use_analysis: UseAnalysis) -> Loads:
    """What the nodes of a use do.

    Nodes that have neither type are indices, masks, counters and text. What Grappler
    computes beforehand, from constants and shapes, does nothing. Nor does any of them
    under XLA, where they are part of other loops.
    """
    found = use_analysis.found
    own = {
        name: _load(use_analysis, view)
        for name, view in found.typed.items()
        if view.float32 or name in found.already
    }
    if use_analysis.context.xla:
        return Loads(own, (), ())
    rest = (*_others(use_analysis, own), *_copies(use_analysis))
    return Loads(own, rest, tuple(_spared(use_analysis, own)))


def _load(use_analysis: UseAnalysis, view: Typed) -> Load:
    graph, context = use_analysis.graph, use_analysis.context
    node, work = view.node, view.facts.work
    if work == "free" or moves_nothing(graph, view):
        return Load("free", 0, 0.0)
    ins = [graph.size(edge) for edge in node.inputs]
    outs = [graph.size((node.name, i)) for i in range(len(view.outs))]
    turned_ins = _turning_shapes(ins, view.ins, context)
    turned_outs = _turning_shapes(outs, view.outs, context)
    moved = arithmetic.moved(work, turned_ins, turned_outs)
    if view.facts.kind is Kind.WRITE:
        variables = sum(slot.type == ir.RESOURCE for slot in view.ins)
        rows = _rows(ins, view) if view.facts.writes_rows else 0
        moved += arithmetic.updated(turned_ins, rows, variables)
    equation = node.text("equation") if work == "einsum" else ""
    operations = arithmetic.flops(view.facts, ins, outs, equation)
    return Load(_kernel(view, ins, outs), moved, operations, node.op)


_LAST = ("", "NHWC", "NDHWC", "CHANNELS_LAST")  # formats of data, channels last


def _kernel(view: Typed, ins: Sequence[ir.Shape], outs: Sequence[ir.Shape]) -> str:
    """The work whose kernels a node's is like."""
    work, node = view.facts.work, view.node
    if work == "einsum" and (equation := node.text("equation")):
        return "batch_matmul" if arithmetic.batched(equation) else "matmul"
    if work == "matmul" and node.flag("transpose_b"):
        return "matmul_transposed" if arithmetic.of_few_rows(ins, outs) else work
    if work == "depthwise_grad_input":
        strided = any(stride > 1 for stride in node.integers("strides"))
        return "depthwise_grad_strided" if strided else "depthwise"
    if work in arithmetic.CONVOLUTIONS and node.text("data_format") in _LAST:
        few = arithmetic.channels_of_few(view.facts, ins, outs)
        return "depthwise" if few else work
    return work


# The kinds of node that take no time of their own.
_IDLE = (Kind.CONSTANT, Kind.PLACEHOLDER, Kind.NOTHING, Kind.READ_VARIABLE, Kind.SHAPE)


def _others(
    use_analysis: UseAnalysis, own: Container[str]
) -> Iterator[tuple[float, Load]]:
    graph = use_analysis.graph
    for name, view in use_analysis.found.typed.items():
        row = view.facts
        idle = row.kind in _IDLE or row.work in ("free", "call") or row.in_frames
        if name in own or idle or not view.outs:
            continue
        if op_instance.constant(graph, (name, 0)) is not None:
            continue
        edges = [*view.node.inputs, *((name, i) for i in range(len(view.outs)))]
        pairs = zip(edges, (*view.ins, *view.outs), strict=False)
        sizes = [graph.size(edge) for edge, slot in pairs if slot.type not in _OPAQUE]
        moved = sum(shapes.elements(size) for size in sizes)
        yield use_analysis.runs.get(name, 1.0), Load(row.work, moved, 0.0, view.node.op)


def _copies(use_analysis: UseAnalysis) -> Iterator[tuple[float, Load]]:
    """Reads of variables of which rows are written: each copies all of its variable."""
    graph, typed = use_analysis.graph, use_analysis.found.typed
    written = {
        edge
        for view in typed.values()
        if view.facts.writes_rows
        for edge, slot in zip(view.node.inputs, view.ins, strict=False)
        if slot.type == ir.RESOURCE
    }
    for name, view in typed.items() if written else ():
        reads = view.facts.kind is Kind.READ_VARIABLE and view.node.inputs[0] in written
        if reads and (graph.readers.get((name, 0)) or name in graph.control_results):
            yield use_analysis.runs.get(name, 1.0), _copy(graph.size((name, 0)))


# XLA's code for a grouped convolution on a CPU takes about so many times as long as a
# depthwise one is priced at: 8, 23, 37 and 64 times on two cores, by shape and gradient
# (EPYC with AVX512-BF16, TensorFlow 2.21).
_XLA_GROUPS = 25.0


def _spared(
    use_analysis: UseAnalysis, own: Mapping[str, Load]
) -> Iterator[tuple[float, Load]]:
    """What was done before `row_reads`, `batch_norms` and `lone_convolutions`."""
    for name, view in use_analysis.found.typed.items():
        runs = use_analysis.runs.get(name, 1.0)
        if copied := view.node.integer(ir.COPIED, 0):
            yield runs, _copy((copied,))
        if passes := view.node.integer(ir.PASSES, 0):
            data = shapes.elements(use_analysis.graph.size((name, 0)))
            yield runs * passes, Load("elementwise", data, 0.0)
        if view.node.flag(ir.ALONE) and (load := own[name]).work == "depthwise":
            yield runs * (_XLA_GROUPS - 1), load._replace(op="")


def _copy(size: ir.Shape) -> Load:
    return Load("copy", 2 * shapes.elements(size), 0.0)


# Types of handles and texts, whose elements are not moved.
_OPAQUE = frozenset({ir.RESOURCE, ir.VARIANT, ir.STRING})


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
