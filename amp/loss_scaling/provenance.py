"""Which gradient calls flow into an update, found from the gradients it is given.

A gradient may be taken only to be looked at; its overflow is then no reason to leave an
update out. Nothing is decided here: where the origin cannot be told, None is returned,
and `update` goes by the flags of all scalers of the variables. Public TensorFlow only.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph.ir import UNSCALE
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scaler import Scaler

# Not a str: meta graphs are exported with the collections that have a str key.
_CALLS = ("amp", "gradient_calls")
_Key: TypeAlias = tuple[int, str]  # identity of a graph, name of an operation
_EAGER_TENSOR = tf.__internal__.EagerTensor
# Where TensorFlow 1 enters and leaves loops and branches: what is computed there is not
# to be read from outside.
_FRAMES = ("Switch", "Merge", "Enter", "Exit", "NextIteration")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One scaled gradient call.

    Args:
      scaler: what it was scaled by.
      finite: whether all of its gradients were, bool, shape ().
      waits: whether its overflow waits for an optimizer to answer it.
      moved: whether replicas have agreed on it, and moved the scale.
    """

    scaler: Scaler
    finite: tf.Tensor
    waits: bool = True
    moved: bool = False


def note(call: Call, grads: Sequence[Any]) -> None:
    """Remembers which call gave these gradients, while they or their graph live."""
    for tensor in _tensors(grads):
        if isinstance(tensor, _EAGER_TENSOR):
            key = id(tensor)
            SCALING.gradients[key] = (weakref.ref(tensor), call)
            forget = SCALING.gradients.pop
            weakref.finalize(tensor, forget, key, None).atexit = False
        else:
            tensor.graph.add_to_collection(_CALLS, (tensor.op, call))


def calls(grads: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Call] | None:
    """Returns the calls whose gradients flow into these tensors, None if unknown.

    Args:
      grads: what an optimizer is given: tensors, IndexedSlices, or None.
      variables: what it updates; to read these brings no gradient along.
    """
    found: dict[int, Call] = {}
    waiting = []
    for tensor in _tensors(grads):
        if not isinstance(tensor, _EAGER_TENSOR):
            waiting.append(tensor.op)
            continue
        reference, call = SCALING.gradients.get(id(tensor), (None, None))
        if call is None or reference is None or reference() is not tensor:
            return None
        found[id(call)] = call
    for each in _behind(waiting, _handles(variables)):
        if each is None:
            return None
        found[id(each)] = each
    return list(found.values())


def _behind(waiting: list[Any], handles: list[Any]) -> Iterator[Call | None]:
    """Yields the calls behind operations of a graph; None where something is unknown.

    ::

        a gradient of a call:           that call
        another unscaled gradient:      nothing
        a constant, an updated weight:  nothing
        arithmetic:                     whatever is behind its inputs
        anything else:                  unknown
    """
    known = _known(waiting)
    seen: set[_Key] = set()
    while waiting:
        op = waiting.pop()
        key = (id(op.graph), op.name)
        if key in seen:
            continue
        seen.add(key)
        if key in known:
            yield known[key]
        elif not _unscales(op) and not _reads(op, handles):
            if not _arithmetic(op):
                yield None
                return
            waiting += [tensor.op for tensor in op.inputs]


def _known(operations: Sequence[Any]) -> dict[_Key, Call]:
    graphs = {id(op.graph): op.graph for op in operations}
    return {
        (key, op.name): call
        for key, graph in graphs.items()
        for op, call in graph.get_collection(_CALLS)
    }


def _arithmetic(op: Any) -> bool:
    """Whether what an operation gives comes from its inputs and from nowhere else."""
    if op.type == "Placeholder" or op.type.removeprefix("Ref") in _FRAMES:
        return False
    if op.op_def is None or op.op_def.is_stateful:
        return False
    values = op.node_def.attr.values()
    return not any(v.HasField("func") or v.list.func for v in values)


def _unscales(op: Any) -> bool:
    attr = op.node_def.attr
    return UNSCALE in attr and bool(attr[UNSCALE].b)


def _reads(op: Any, handles: list[Any]) -> bool:
    """Whether an operation reads one of the variables that are updated."""
    if op.type != "ReadVariableOp":
        return False
    read = op.inputs[0]
    outer = [o for o, inner in getattr(op.graph, "captures", ()) if inner is read]
    return any(handle is each for each in (read, *outer) for handle in handles)


def _handles(variables: Sequence[Any]) -> list[Any]:
    handles = [getattr(variable, "handle", None) for variable in variables]
    return [handle for handle in handles if handle is not None]


def _tensors(grads: Sequence[Any]) -> list[Any]:
    each = (g.values if isinstance(g, tf.IndexedSlices) else g for g in grads)
    return [tensor for tensor in each if isinstance(tensor, tf.Tensor)]
