"""Op instances: what an operation's time depends on, and how to run one alone.

Names and chooses what is worth measuring; no runtime, no clock, and no measuring here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp.graph_rewrite import cost, ir, op_schema
from amp.graph_rewrite.context import Context, Typed
from amp.graph_rewrite.op_table import Role
from amp.graph_rewrite.propagate import Candidates

# What is left out makes up less than 2 % of the predicted time.
COVERED = 0.98
# An operation predicted to take less than this many starts of a kernel is left out too:
# whatever its type, what it costs is the start.
LEAST_STARTS = 1.5
# Constants up to here are part of a name; larger ones are rare (tables of indices).
MOST_VALUES = 64

Times: TypeAlias = tuple[float, float]  # seconds in (float32, 16 bits)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One input of an operation that is run alone.

    Attributes:
      shape: of the tensor, without unknown dimensions.
      number: its type.
      values: those of a constant, None where any will do.
    """

    shape: tuple[int, ...]
    number: int
    values: Any = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Form:
    """An operation in one precision: the node, whose edges do not count, and inputs."""

    node: ir.Node
    operands: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An operation whose time in both precisions is wanted.

    Attributes:
      key: what its times depend on, on a given device: the same text in every process.
      work: kind of work, as the op table names it, or "cast".
      forms: it in float32 and in 16 bits; a cast down and up.
      executor: "kernels" or "xla".
      predicted: seconds of one in either form, by the model.
      runs: how often a step runs it.
      moved: bytes of all its tensors in float32.
    """

    key: str
    work: str
    forms: tuple[Form, Form]
    executor: str
    predicted: Times
    runs: float
    moved: int

    @property
    def share(self) -> float:
        """Predicted seconds of a step."""
        return self.runs * self.predicted[0]


# Gives the seconds in (float32, 16 bits) of those that it knows or measures, by key;
# infinite where the operation fails in 16 bits.
Timer: TypeAlias = Callable[[Sequence[Instance]], Mapping[str, Times]]


def known_sizes(shape: ir.Shape) -> tuple[int, ...] | None:
    """A shape with the size that the cost model takes for an unknown dimension."""
    if shape is None:
        return None
    return tuple(size if size >= 0 else cost.UNKNOWN_DIMENSION for size in shape)


def key(graph: ir.Graph, view: Typed, context: Context) -> str:
    """The name of a node's instance, "" if it cannot be run alone.

    It is made of the op, its inputs (`*` for the type that turns, a constant by its
    values), attributes other than defaults, the 16-bit type and the executor: all that
    its times depend on, and neither its name nor which precision it has now.

    An operation cannot be run alone if it has effects, handles or functions, if its
    time is that of its neighbours (under XLA, whatever is no product), or if a shape,
    or a value that is no number of the type that turns, is not known.
    """
    operands = _operands(graph, view, context)
    if operands is None:
        return ""
    turned = _turned(view, context)
    parts = [view.node.op]
    for operand, slot in zip(operands, view.ins, strict=True):
        parts.append(_text(operand, slot.attr in turned))
    attrs = {} if view.node.attrs is None else view.node.attrs.texts()
    parts += [f"{name}={text}" for name, text in attrs.items() if name not in turned]
    return " ".join((*parts, "|", context.format.name, _executor(context)))


def _executor(context: Context) -> str:
    return "xla" if context.xla else "kernels"


def _text(operand: Operand, turns: bool) -> str:
    if operand.values is not None:
        values = np.asarray(operand.values).tolist()
        return str(values).replace(" ", "")
    kind = "*" if turns else f"{operand.number}:"
    return kind + "x".join(map(str, operand.shape))


def _turned(view: Typed, context: Context) -> frozenset[str]:
    """The type attributes that make the difference between the two precisions."""
    numbers = {ir.FLOAT, context.format.number}
    attrs = () if view.row is None else view.row.attrs
    return frozenset(a for a in attrs if numbers & set(view.node.types(a)))


def _operands(
    graph: ir.Graph, view: Typed, context: Context
) -> tuple[Operand, ...] | None:
    """The inputs in float32, None where the node cannot be run alone."""
    node, row = view.node, view.row
    if row is None or row.work == "free" or op_schema.is_stateful(node.op):
        return None
    if context.xla and row.role is not Role.COMPUTE:
        return None
    turned = _turned(view, context)
    if not turned or any(len(node.types(attr)) != 1 for attr in turned):
        return None
    device = node.device.upper()
    if "DEVICE:" in device and f"DEVICE:{context.device_type}:" not in device:
        return None
    slots = (*view.ins, *view.outs)
    if any(slot.type in (ir.RESOURCE, ir.VARIANT, ir.STRING) for slot in slots):
        return None
    found = []
    for edge, slot in zip(node.inputs, view.ins, strict=False):
        operand = _operand(graph, edge, slot, slot.attr in turned)
        if operand is None:
            return None
        found.append(operand)
    return tuple(found) if len(found) == len(view.ins) else None


def _operand(
    graph: ir.Graph, edge: ir.Edge, slot: op_schema.Slot, turns: bool
) -> Operand | None:
    sizes = known_sizes(graph.shape(edge))
    if turns:
        return None if sizes is None else Operand(sizes, ir.FLOAT)
    if slot.type in (ir.FLOAT, ir.BOOL):
        # Of unknown rank is only what one kernel hands to another of the same device
        # (the reserve of a batch normalisation), which takes an empty one as well.
        return Operand((0,) if sizes is None else sizes, slot.type)
    values = constant(graph, edge)
    if values is None or np.size(values) > MOST_VALUES:
        return None
    return Operand(tuple(np.shape(values)), slot.type, values)


def constant(graph: ir.Graph, edge: ir.Edge) -> Any:
    """The integers of an edge that depends on constants and shapes only, else None."""
    node = graph.nodes.get(edge[0])
    if node is None:
        return None
    if node.op == "Const":
        return node.tensor()
    if node.op == "Identity":
        return constant(graph, node.inputs[0])
    if node.op in ("Shape", "ShapeN"):
        return known_sizes(graph.shape(node.inputs[edge[1]]))
    if node.op == "BroadcastGradientArgs":
        shapes = [constant(graph, source) for source in node.inputs]
        return None if any(s is None for s in shapes) else _summed(shapes, edge[1])
    return None


def _summed(shapes: Sequence[Sequence[int]], which: int) -> list[int]:
    """The axes over which the gradient of a broadcast operand is summed."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    own = [1] * (rank - len(shapes[which]))
    wide = padded[1 - which]
    return [
        axis
        for axis, size in enumerate(padded[which])
        if axis < len(own) or (size == 1 and wide[axis] != 1)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One use of a function: its candidates and what the model says that they take."""

    graph: ir.Graph
    found: Candidates
    context: Context
    clock: cost.Clock
    times: Mapping[str, Times]
    runs: float


def wanted(parts: Sequence[Part]) -> list[Instance]:
    """What is worth measuring, the most telling first.

    Every distinct instance among the candidates, and casts of about their tensors'
    sizes, by the predicted seconds of a step; what is too small to matter is left out
    (`COVERED`, `LEAST_STARTS`). Without a prediction of 16 bits: where that is wrong is
    what measuring is to find.
    """
    found: dict[str, Instance] = {}
    for part in parts:
        for one in itertools.chain(_of_nodes(part), _of_casts(part)):
            if one.predicted[0] > LEAST_STARTS * part.clock.start:
                was = found.get(one.key)
                runs = one.runs + (was.runs if was is not None else 0.0)
                found[one.key] = dataclasses.replace(one, runs=runs)
    ordered = sorted(found.values(), key=lambda one: (-one.share, one.key))
    enough = COVERED * sum(one.share for one in ordered)
    before = itertools.accumulate((one.share for one in ordered), initial=0.0)
    return [one for one, seen in zip(ordered, before, strict=False) if seen < enough]


def _of_nodes(part: Part) -> Iterator[Instance]:
    graph, context = part.graph, part.context
    for name in part.found.allowed:
        view = part.found.typed[name]
        text = key(graph, view, context)
        operands = _operands(graph, view, context) if text else None
        if operands is None or view.row is None:
            continue
        turned = _turned(view, context)
        outs = [graph.shape((name, i)) for i in range(len(view.outs))]
        shapes = [*(operand.shape for operand in operands), *outs]
        yield Instance(
            key=text,
            work=view.row.work,
            forms=(
                _form(view, operands, turned, ir.FLOAT),
                _form(view, operands, turned, context.format.number),
            ),
            executor=_executor(context),
            predicted=part.times[name],
            runs=part.runs,
            moved=4 * sum(map(cost.elements, shapes)),
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


def _of_casts(part: Part) -> Iterator[Instance]:
    """Casts of as many elements as the candidates' tensors have, to a power of four.

    Under XLA a cast is fused with its neighbours, and has no time of its own.
    """
    if part.context.xla:
        return
    counts: dict[int, int] = {}
    for name in part.found.allowed:
        view = part.found.typed[name]
        for index, slot in enumerate(view.outs):
            shape = part.graph.shape((name, index))
            if slot.type == ir.FLOAT and shape is not None:
                size = 4 ** round(math.log(max(cost.elements(shape), 1), 4))
                counts[size] = counts.get(size, 0) + 1
    low = part.context.format.number
    for size, count in counts.items():
        ends = ((ir.FLOAT, low), (low, ir.FLOAT))
        down, up = (_cast(size, *end) for end in ends)
        seconds = part.clock.cast((size,))
        yield Instance(
            key=f"Cast *{size} | {part.context.format.name} kernels",
            work="cast",
            forms=(down, up),
            executor="kernels",
            predicted=(seconds, seconds),
            runs=part.runs * count,
            moved=8 * size,
        )


def _cast(size: int, given: int, made: int) -> Form:
    types: dict[str, ir.Value] = {"SrcT": ir.Type(given), "DstT": ir.Type(made)}
    node = ir.Node("cast", "Cast", (), (), "", None, types)
    return Form(node, (Operand((size,), given),))
