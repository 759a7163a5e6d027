"""Finds the gradient calls from which the gradients of an update were computed.

An update is skipped only if a gradient that it uses overflowed. A program may also take
gradients by the same variables for something else (to print a norm, say), and their
overflow must not skip the update. `note` records which call made a tensor; `calls`
follows the gradients that an optimizer gets back to such tensors.

If that is not possible, `calls` returns None, and `update` goes by all scalers of the
variables. No decision is made here. Public TensorFlow only.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph.ir import UNSCALE
from amp.loss_scaling.outer_graphs import outward
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scaler import Scaler

# Not a str: meta graphs are exported with the collections that have a str key.
_CALLS = ("amp", "gradient_calls")
_INSIDE = ("amp", "gradient_calls_inside")
_Key: TypeAlias = tuple[int, str]  # identity of a graph, name of an operation
_EAGER_TENSOR = tf.__internal__.EagerTensor
# Ops at the edges of loops and branches in TensorFlow 1's control flow. A tensor that
# is computed inside cannot be read outside, so the search stops at them.
_FRAMES = ("Switch", "Merge", "Enter", "Exit", "NextIteration")


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One scaled gradient call.

    Args:
      scaler: the scaler of the call.
      finite: whether all gradients of the call were finite, bool, shape ().
      waits: whether an overflow is noted until an optimizer skips an update for it.
      moved: whether replicas have agreed on `finite` already, and changed the scale.
      counted: whether replicas have changed the scale by `finite`, which they still ask
        for. Into however many sums and updates the gradients go, it changes once.
      behind: what `behind` returned for its targets.
    """

    scaler: Scaler
    finite: tf.Tensor
    waits: bool = True
    moved: bool = False
    counted: bool = False
    behind: tuple[Call | None, ...] = ()


class Noted(NamedTuple):
    """A gradient of a graph.

    Attributes:
      op: the operation that makes it.
      call: where it comes from.
      check: whether it is finite, bool, shape (); None where only the call knows.
    """

    op: Any
    call: Call
    check: tf.Tensor | None


def note(call: Call, grads: Sequence[Any], checks: Sequence[tf.Tensor] = ()) -> None:
    """Records that these gradients come from `call`.

    The record of an eager tensor is dropped with the tensor; that of a graph tensor is
    part of its graph.

    Args:
      call: where they come from.
      grads: tensors, IndexedSlices, or None.
      checks: for each of them whether it is finite, bool, shape (); none if not known.
    """
    for grad, check in itertools.zip_longest(grads, checks):
        tensor = _tensor(grad)
        if tensor is None:
            continue
        if isinstance(tensor, _EAGER_TENSOR):
            key = id(tensor)
            SCALING.gradients[key] = (weakref.ref(tensor), call)
            forget = SCALING.gradients.pop
            weakref.finalize(tensor, forget, key, None).atexit = False
        else:
            noted = Noted(tensor.op, call, check)
            tensor.graph.add_to_collection(_CALLS, noted)
            _mark_around(tensor.graph)


def _mark_around(graph: Any) -> None:
    """Marks the graphs around that of a function as having a scaled call inside."""
    around = itertools.islice(outward(graph), 1, None)
    for each in itertools.takewhile(lambda each: not has_inside(each), around):
        each.add_to_collection(_INSIDE, id(each))


def has_inside(graph: Any) -> bool:
    """Whether a function, loop or branch inside of a graph has a scaled call."""
    # Graphs of functions begin with the collections of the graph around them.
    return id(graph) in graph.get_collection(_INSIDE)


def noted(graph: tf.Graph) -> list[Noted]:
    """The gradients of a graph whose origin was recorded."""
    return list(graph.get_collection(_CALLS))


def calls(grads: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Call] | None:
    """Returns the calls from whose gradients these tensors are computed.

    Args:
      grads: what an optimizer is given: tensors, IndexedSlices, or None. Of anything
        else, such as a variable that gradients were summed in, the origin is not known.
      variables: the variables that it updates. Gradients may be computed from their
        values too (weight decay); the search does not continue behind such a read.

    Returns:
      The calls, each once; None if the origin of a tensor is not known.
    """
    found: list[Call | None] = []
    waiting = []
    for grad in grads:
        if grad is None:
            continue
        tensor = _tensor(grad)
        if tensor is None:
            return None
        if isinstance(tensor, _EAGER_TENSOR):
            found.append(_of_eager(tensor))
        else:
            waiting.append(tensor.op)
    every = _with_behind([*found, *_sources(waiting, _handles(variables))])
    known = [call for call in every if call is not None]
    return known if len(known) == len(every) else None


def behind(tensors: Sequence[Any]) -> tuple[Call | None, ...]:
    """Returns the calls whose gradients went into the targets of another call.

    An overflow of theirs is zeros by then, so the gradients of that other call need not
    show it. In eager code only gradients that are themselves `tensors` are found.

    Args:
      tensors: the targets, and the incoming gradients if there are any.

    Returns:
      The calls, each once, and None if there may be others, in a function, a branch or
      a loop that the targets are computed by.
    """
    flat = [tensor for tensor in map(_tensor, tensors) if tensor is not None]
    eager = [_of_eager(t) for t in flat if isinstance(t, _EAGER_TENSOR)]
    operations = [t.op for t in flat if not isinstance(t, _EAGER_TENSOR)]
    found = [call for call in eager if call is not None]
    return tuple(_with_behind([*found, *_all_behind(operations)]))


def _with_behind(found: Sequence[Call | None]) -> list[Call | None]:
    """Returns calls and those behind them, each once."""
    return list(
        dict.fromkeys(
            each
            for call in found
            for each in ((call, *call.behind) if call else (None,))
        )
    )


def _of_eager(tensor: Any) -> Call | None:
    """The call that made an eager tensor; None if none is recorded."""
    reference, call = SCALING.gradients.get(id(tensor), (None, None))
    made = reference is not None and reference() is tensor
    return call if made else None


def _all_behind(waiting: list[Any]) -> Iterator[Call | None]:
    """Yields the calls that operations depend on, through whatever operation.

    None for those in a function, or in a loop or branch of TensorFlow 1's control flow:
    nothing of such a call can be read outside. Of what a branch, a loop or a function
    reads from around it, the search goes on there; what it is handed may be any.
    """
    known = _known(waiting)
    inside = any(has_inside(op.graph) for op in waiting)
    seen: set[_Key] = set()
    beyond: list[Any] = []  # the edge of a loop or branch
    reading = Reading()
    while (waiting or beyond) and (known or inside):
        crossed = not waiting
        op = (waiting or beyond).pop()
        key = (id(op.graph), op.name)
        if key in seen:
            continue
        seen.add(key)
        if key in known:
            yield None if crossed else known[key]
            continue
        if inside and _has_function(op):
            yield None
        found = reading.of(op)
        read = [each for each in found if tf.is_symbolic_tensor(each)]
        if not found and op.type == "Placeholder" and _calls_around(op.graph):
            yield None
        outside = not crossed and not _is_frame(op)
        (waiting if outside else beyond).extend(tensor.op for tensor in read)


class Reading:
    """What operations of graphs read; of arguments, what they stand for.

    The argument of a function, a branch or a loop stands for what it captures from the
    graph around, or of eager code. Captures are listed once for each graph.
    """

    def __init__(self) -> None:
        self._captured: dict[int, dict[Any, Any]] = {}

    def of(self, op: Any) -> list[Any]:
        """The tensors that an operation reads; none for an argument handed to it."""
        if op.inputs or op.type != "Placeholder":
            return list(op.inputs)
        if id(op.graph) not in self._captured:
            captures = getattr(op.graph, "captures", ())
            pairs = {inner.ref(): outer for outer, inner in captures}
            self._captured[id(op.graph)] = pairs
        outer = self._captured[id(op.graph)].get(op.outputs[0].ref())
        return [] if outer is None else [outer]


def _calls_around(graph: Any) -> bool:
    around = itertools.islice(outward(graph), 1, None)
    return any(_CALLS in each.collections for each in around)


def _sources(waiting: list[Any], handles: list[Any]) -> Iterator[Call | None]:
    """Yields the calls that operations of a graph depend on, None for unknown.

    For each operation that is reached::

        recorded by `note`:             its call
        another unscaled gradient:      nothing
        a constant, an updated weight:  nothing
        arithmetic:                     go on with its inputs
        anything else:                  None, and stop

    Args:
      waiting: the operations to begin with.
      handles: the handles of the variables that are updated.
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
    """The gradients of the graphs of operations, and of those around, by operation."""
    inner = {id(op.graph): op.graph for op in operations}.values()
    graphs = {id(each): each for graph in inner for each in outward(graph)}
    return {
        (id(each.op.graph), each.op.name): each.call
        for graph in graphs.values()
        for each in noted(graph)
    }


def _arithmetic(op: Any) -> bool:
    """Whether the results of an operation depend on its inputs and nothing else."""
    if op.type == "Placeholder" or _is_frame(op):
        return False
    if op.op_def is None or op.op_def.is_stateful:
        return False
    return not _has_function(op)


def _is_frame(op: Any) -> bool:
    return op.type.removeprefix("Ref") in _FRAMES


def _has_function(op: Any) -> bool:
    """Whether an operation has a function in it: a call, a loop, a branch."""
    values = op.node_def.attr.values()
    return any(v.HasField("func") or v.list.func for v in values)


def _unscales(op: Any) -> bool:
    attr = op.node_def.attr
    return UNSCALE in attr and bool(attr[UNSCALE].b)


def _reads(op: Any, handles: list[Any]) -> bool:
    """Whether an operation reads a variable with one of these handles."""
    if op.type != "ReadVariableOp":
        return False
    read = op.inputs[0]
    outer = [o for o, inner in getattr(op.graph, "captures", ()) if inner is read]
    return any(handle is each for each in (read, *outer) for handle in handles)


def _handles(variables: Sequence[Any]) -> list[Any]:
    handles = [getattr(variable, "handle", None) for variable in variables]
    return [handle for handle in handles if handle is not None]


def _tensor(grad: Any) -> Any:
    """The tensor of a gradient; None if it is something else."""
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    return values if isinstance(values, tf.Tensor) else None
