"""Finds out whether gradients were combined with those of other processes.

Called by `training.conditional_updates` before an update. If they were, the update must
not be skipped for an overflow in this process alone: the other processes update, and
the weights would differ from then on. The combined gradients are applied then; those
that overflowed here went into them as zeros.

Operations that combine gradients are recognised by the names of their types. Nothing is
changed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph.calls import calls_once
from amp.graph_rewrite.graph.ir import UNSCALE
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration.runtime import clusters

# Reductions and gathers of TensorFlow (Collective*, Nccl*, CrossReplicaSum), Horovod's
# and BytePS's (HorovodAllreduce, BytepsPushPull), and operations whose result does not
# come from their inputs: a queue, an accumulator, another task, Python.
_COMBINES = re.compile(
    r"(?i)horovod|byteps|nccl|collective|all_?reduce|all_?gather|crossreplica"
    r"|dequeue|accumulator.*takegradient|^_?recv|pyfunc"
)


def combined(grads: Sequence[Any]) -> bool:
    """Whether gradients were combined with those of other processes.

    In eager code the operations that made a gradient are not known, so that with
    several processes of Horovod it is taken to be combined.

    Args:
      grads: what an optimizer is given.
    """
    if clusters.is_of_horovod():
        return True
    return any(_COMBINES.search(kind) for kind in _kinds(grads))


def _kinds(grads: Sequence[Any]) -> Iterator[str]:
    """Yields the types of the operations that were applied to unscaled gradients.

    Those between the nodes that unscale and `grads`, in called functions too.
    """
    waiting = [op for grad in grads for op in _operations(grad)]
    unscaled = _unscaled(waiting)
    seen = set()
    while waiting:
        op = waiting.pop()
        if op in seen or _unscales(op):
            continue
        seen.add(op)
        yield op.type
        yield from _called(op)
        waiting += [tensor.op for tensor in _gradients(op, unscaled)]


def _operations(grad: Any) -> list[Any]:
    if grad is None:
        return []
    if isinstance(grad, tf.IndexedSlices):
        # Where they go is the program's: the ids of a batch, from wherever it comes.
        tensors = [grad.values]
    else:
        tensors = tf.nest.flatten(grad, expand_composites=True)
    graph_tensors = [t for t in tensors if not isinstance(t, _EAGER)]
    return [t.op for t in graph_tensors if isinstance(t, tf.Tensor)]


def _unscaled(ends: Sequence[Any]) -> set[Any]:
    """The operations behind `ends` that an unscaled gradient leads to."""
    readers: dict[Any, list[Any]] = {}
    seen, waiting = set(), list(ends)
    while waiting:
        op = waiting.pop()
        if op in seen or _unscales(op):
            continue
        seen.add(op)
        for tensor in op.inputs:
            readers.setdefault(tensor.op, []).append(op)
            waiting.append(tensor.op)
    found, waiting = set(), [op for op in readers if _unscales(op)]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += readers.get(op, ())
    return found


def _gradients(op: Any, unscaled: Collection[Any]) -> list[tf.Tensor]:
    """The inputs of an operation that may be gradients, of this process or another.

    The factor of a gradient is none (a count of examples), nor are indices and shapes.
    Where no input is an unscaled gradient, another process's may be behind any.
    """
    own = [tensor for tensor in op.inputs if tensor.op in unscaled]
    if not own:
        return list(op.inputs)
    row = facts(op.type)
    scales = row.kind is Kind.PRODUCT or 1 in row.singular  # or divides
    others = () if scales else op.inputs
    return own + [tensor for tensor in others if not tensor.dtype.is_integer]


_EAGER = tf.__internal__.EagerTensor


def _unscales(op: Any) -> bool:
    try:
        return bool(op.get_attr(UNSCALE))
    except ValueError:
        return False


def _called(op: Any) -> Iterator[str]:
    """Yields the types of the operations in a function that `op` calls."""
    if not calls_once(op.type):
        return
    library = {f.signature.name: f for f in op.graph.as_graph_def().library.function}
    waiting, seen = [op.get_attr("f").name], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            yield node.op
            waiting += [a.func.name for a in node.attr.values() if a.func.name]
