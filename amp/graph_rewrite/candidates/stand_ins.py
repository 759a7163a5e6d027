"""Ops that stand in for others in 16 bits, because their kernels add up in float32.

`sums`, `cost` and `apply` ask here for the 16-bit form of such a node. Whether the node
becomes 16-bit is decided elsewhere, and no graph is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.chains import BIAS_GRADIENT, FILTER_GRADIENT
from amp.graph_rewrite.ops.op_table import Row, facts


@dataclasses.dataclass(frozen=True, slots=True)
class StandIn:
    """The 16-bit form of a node that sums its first input to one value a channel.

    Attributes:
      op: of the form.
      axes: those that are summed.
    """

    op: str
    axes: tuple[int, ...]

    def node(self, of: ir.Node, number: int, axes: ir.Edge) -> ir.Node:
        """The node, with the name, device and data of the one that it stands in for.

        Args:
          of: that one.
          number: DataType of the 16-bit type.
          axes: the edge that gives `axes`.
        """
        attrs: dict[str, ir.Value] = {"T": ir.Type(number), "Tidx": ir.Type(ir.INT32)}
        inputs = (of.inputs[0], axes)
        return ir.Node(
            of.name, self.op, inputs, of.controls, of.device, None,
            {**attrs, "keep_dims": False},
        )  # fmt: skip


def stand_in(graph: ir.Graph, view: Typed, context: Context) -> StandIn | None:
    """The form that a node has in 16 bits, None where its own op will do.

    It needs one if its kernel accumulates in the 16-bit type and that of
    `Row.stand_in` does not, and gets one if the rank of its input is known.
    """
    row = view.facts
    if not row.stand_in or not accumulates_low(row, context):
        return None
    shape = graph.shape(view.node.inputs[0])
    if shape is None or accumulates_low(facts(row.stand_in), context):
        return None
    first = view.node.text("data_format").startswith("NC")
    channels = 1 if first else len(shape) - 1
    return StandIn(row.stand_in, tuple(i for i in range(len(shape)) if i != channels))


def is_merged(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    node: ir.Node,
    low: Container[str],
    context: Context,
) -> bool:
    """Whether the gradient of a bias is computed with that of a filter, as one kernel.

    Then no op need stand in for it. Not where the pass might take another node of the
    same ops, or none: one gradient of a bias and one of a filter read the tensor, alike
    in all that it asks for.

    Args:
      graph: the graph.
      typed: its nodes with their types.
      node: in 16 bits.
      low: the nodes that are.
      context: of the use.
    """
    onednn = context.device_type == "CPU" and context.native and not context.xla
    if node.op != BIAS_GRADIENT[0] or context.format.name != "bfloat16" or not onednn:
        return False
    source, _ = node.inputs[0]
    outs = typed[source].outs if source in typed else (None,)
    readers = [
        (graph.nodes[name], at)
        for port in range(len(outs))  # the pass does not ask which
        for name, at in graph.readers.get((source, port), ())
    ]
    biases = [reader for reader, at in readers if (reader.op, at) == BIAS_GRADIENT]
    filters = [reader for reader, at in readers if (reader.op, at) == FILTER_GRADIENT]
    if len(biases) != 1 or len(filters) != 1:
        return False
    (other,) = filters
    return (
        other.name in low
        and other.inputs[FILTER_GRADIENT[1]] == node.inputs[0]
        and other.text("padding") != "EXPLICIT"
        and other.text("data_format") == node.text("data_format")
        and other.device == node.device
        and set(other.controls) == set(node.controls)
    )


def accumulates_low(row: Row, context: Context) -> bool:
    """Whether the kernel that will run accumulates in the 16-bit type."""
    if context.policy.emulate:  # float32 kernels
        return False
    return context.format.name in row.adds_up_low(
        context.device_type, native=context.native, xla=context.xla
    )
