"""The casts by which users see a tensor of the twin as their graph has it.

Used by `policy_view` for tensors that are fetched. Nothing is imported or run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import TABLE, Kind, facts


def is_list(tensor: Any) -> bool:
    """Whether a tensor is a list, an array or a stack, whose elements may be 16-bit."""
    if tensor.dtype != tf.resource:
        return bool(tensor.dtype == tf.variant)
    made, seen = tensor.op, set()
    while _hands_on(made.type) and made.name not in seen:
        seen.add(made.name)
        made = made.inputs[0].op
    return facts(made.type).same_list


def _hands_on(op: str) -> bool:
    return facts(op).in_frames or facts(op).kind is Kind.IDENTITY


def rounds(tensor: Any) -> bool:
    """Whether a tensor of the twin is a float32 result that emulation rounds.

    Emulation leaves the operation as it is and adds casts for its readers, so whoever
    fetches the tensor needs such casts too.
    """
    if ir.EMULATED not in tensor.op.node_def.attr:
        return False
    results = tensor.op.op_def.output_arg
    if len(results) != len(tensor.op.outputs):
        return True
    row = TABLE.get(tensor.op.type)
    return row is None or results[tensor.value_index].type_attr in row.attrs


def chain(edge: ir.Edge, tensor: Any, steps: Sequence[int]) -> tuple[Any, str]:
    """Makes casts, one after another, of a tensor of the twin.

    Args:
      edge: the edge of the user's graph; the first cast reads it.
      tensor: the twin's tensor for it.
      steps: the types to cast to (DataType numbers), at least one.

    Returns:
      A GraphDef of the casts, and the name of the last.
    """
    proto = tf.compat.v1.GraphDef()
    given, number = edge, tensor.dtype.base_dtype.as_datatype_enum
    for step in steps:
        name = f"{edge[0]}/amp_to_{ir.DTYPE_NAMES[step]}_{edge[1]}"
        node = proto.node.add(name=name, op="Cast", device=tensor.op.device)
        node.input.append(f"{given[0]}:{given[1]}")
        node.attr["SrcT"].type, node.attr["DstT"].type = number, step
        given, number = (name, 0), step
    return proto, given[0]
