"""Op instances: everything that an operation's time depends on, to run it alone.

Only describes instances: `measurement_candidates` chooses which of them to measure, and
nothing is run or priced here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.stand_ins import stand_in
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.graph.shapes import known_sizes
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind, Role, facts

# Attributes that record where an op comes from and do not affect what it computes.
HINTS = frozenset({"grad_a", "grad_b", "grad_x", "grad_y"})
# Constants of up to this many values are part of a key; larger ones (tables of indices)
# are rare.
MOST_VALUES = 64

Times: TypeAlias = tuple[float, float]  # seconds in (float32, 16 bits)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One input of an operation that is run alone.

    Attributes:
      shape: of the tensor, without unknown dimensions.
      number: its DataType number.
      values: the values of a constant; None if the time does not depend on them.
    """

    shape: tuple[int, ...]
    number: int
    values: Any = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Form:
    """An operation in one precision: its node (edges are not used) and its inputs."""

    node: ir.Node
    operands: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An operation to be timed in both precisions.

    Attributes:
      key: a text of all that its times depend on besides the device; the same in every
        process.
      work: the op's `work` in the op table, or "cast".
      forms: the operation in float32 and in 16 bits; for a cast, down and up. The same
        twice if the device has no such operation in 16 bits.
      executor: "kernels" or "xla".
      predicted: seconds of each form, by the model.
      runs: number of runs per step.
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
    def op(self) -> str:
        """The op, as the program has it."""
        return self.forms[0].node.op

    @property
    def share(self) -> float:
        """Predicted float32 seconds per step."""
        return self.runs * self.predicted[0]


# Returns measured seconds in (float32, 16 bits) by key, for the instances that have
# some; infinite for an operation that fails in 16 bits.
Timer: TypeAlias = Callable[[Sequence[Instance]], Mapping[str, Times]]


def key(graph: ir.Graph, view: Typed, context: Context) -> str:
    """The key of a node's instance, "" if the node cannot be run alone.

    It consists of the op (with its forward op and its stand-in), its inputs (`*` for
    the type that may become 16-bit, a constant by its values), attributes with other
    values than the default, the 16-bit type and the executor. It depends neither on the
    node's name nor on its precision.

    A node cannot be run alone if it is stateful, has handles or functions, or is fused
    with its neighbours (under XLA, all but products), or if the rank of an input, or
    the value of an integer input, is not known.
    """
    operands = operands_of(graph, view, context)
    if operands is None:
        return ""
    turned = turned_attrs(view, context)
    form = stand_in(graph, view, context)
    ops = (view.facts.forward, view.node.op, "" if form is None else form.op)
    parts = [" ".join(filter(None, ops))]
    for operand, slot in zip(operands, view.ins, strict=True):
        parts.append(_text(operand, slot.attr in turned))
    attrs = {} if view.node.attrs is None else view.node.attrs.texts()
    parts += [f"{n}={text}" for n, text in attrs.items() if n not in turned | HINTS]
    return " ".join((*parts, "|", context.format.name, executor_of(context)))


def executor_of(context: Context) -> str:
    """What runs the nodes of a graph: "kernels" or "xla"."""
    return "xla" if context.xla else "kernels"


def _text(operand: Operand, turns: bool) -> str:
    if operand.values is not None:
        values = np.asarray(operand.values).tolist()
        return str(values).replace(" ", "")
    kind = "*" if turns else f"{operand.number}:"
    return kind + "x".join(map(str, operand.shape))


def turned_attrs(view: Typed, context: Context) -> frozenset[str]:
    """The type attributes of a node that differ between the two precisions."""
    numbers = {ir.FLOAT, context.format.number}
    attrs = () if view.row is None else view.row.attrs
    return frozenset(a for a in attrs if numbers & set(view.node.types(a)))


def operands_of(
    graph: ir.Graph, view: Typed, context: Context
) -> tuple[Operand, ...] | None:
    """A node's inputs with float32 types; None if the node cannot be run alone."""
    node, row = view.node, view.row
    if row is None or row.work == "free" or op_schema.is_stateful(node.op):
        return None
    if context.xla and row.role is not Role.COMPUTE:
        return None
    turned = turned_attrs(view, context)
    if not turned or any(len(node.types(attr)) != 1 for attr in turned):
        return None
    if context.is_elsewhere(node.device):
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
    sizes = known_sizes(graph.size(edge))
    if turns:
        return None if sizes is None else Operand(sizes, ir.FLOAT)
    if slot.type in (ir.FLOAT, ir.BOOL):
        # Only a kernel's private data for its gradient kernel (reserve space of batch
        # normalisation) has unknown rank; an empty tensor does as well.
        return Operand((0,) if sizes is None else sizes, slot.type)
    values = constant(graph, edge)
    if values is None or np.size(values) > MOST_VALUES:
        return None
    return Operand(tuple(np.shape(values)), slot.type, values)


def constant(graph: ir.Graph, edge: ir.Edge) -> Any:
    """The integers of an edge computed from constants and shapes only, else None."""
    node = graph.nodes.get(edge[0])
    if node is None:
        return None
    kind = facts(node.op).kind
    if kind is Kind.CONSTANT:
        return node.tensor()
    if kind is Kind.IDENTITY:
        return constant(graph, node.inputs[0])
    if kind is Kind.SHAPE:
        return known_sizes(graph.size(node.inputs[edge[1]]))
    combine = _COMBINED.get(kind)
    if combine is None:
        return None
    given = [constant(graph, source) for source in node.inputs]
    return None if any(one is None for one in given) else combine(given, edge[1])


# The integers at an output of a node, by its kind, from those that it reads.
_COMBINED: Mapping[Kind, Callable[[Sequence[Any], int], Any]] = {
    Kind.BROADCAST_AXES: arithmetic.broadcast_axes,
    Kind.JOINED: lambda given, _: np.concatenate(given[:-1], axis=int(given[-1])),
    Kind.INVERSE: lambda given, _: np.argsort(given[0]),
}
