"""Backward functions inside functions that are called: gradients behind are not scaled.

The gradient of a function is a graph of its own, which TensorFlow makes once for all
that call it: the scale of a call cannot be in it. If a backward function in it is
certain not to be linear (`graph_backward`), a gradient call that calls this graph is
made as if its scale were 1. An eager one, in which TensorFlow runs what it has recorded
and nobody sees what, is made so wherever there is such a graph in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp import messages
from amp.loss_scaling.eager_backward import Passing
from amp.loss_scaling.process import SCALING

# Gives the graphs of the functions that an operation calls or has for branches.
Bodies: TypeAlias = Callable[[Any], Sequence[Any]]


def note(graph: Any) -> None:
    """Notes that a function's gradient, whose graph is being built, is not linear."""
    SCALING.bends.add(graph)


def undone(
    now: Passing, bodies: Bodies, redirect: Callable[[Any, int, tf.Tensor], None]
) -> bool:
    """Has what a gradient call built read 1 for its scale, if that is called in it.

    Args:
      now: of the call.
      bodies: see there.
      redirect: see `graph_backward.Editing`.

    Returns:
      Whether it was called.
    """
    if not SCALING.bends or not tf.is_symbolic_tensor(now.scale):
        return False
    made = now.scale.graph.get_operations()
    since = made[made.index(now.scale.op) :]
    if not _calls_one(since, bodies, set()):
        return False
    one = tf.ones([])
    for operation in now.scale.consumers():
        for index, tensor in enumerate(operation.inputs):
            if tensor is now.scale:
                redirect(operation, index, one)
    return True


def eagerly() -> bool:
    """Whether an eager gradient call is to be one without its scale."""
    return bool(SCALING.bends) and tf.executing_eagerly()


def tell(line: str) -> None:
    """Says, once, that gradients are not scaled.

    Args:
      line: of the gradient call, "" where it is not known.
    """
    where = f" at {line}" if line else ""
    way = "that may be on the way" if tf.executing_eagerly() else "on the way"
    messages.log_once(
        f"gradients{where} are not scaled: a function {way} has a "
        "tf.custom_gradient in it that is not linear in what comes in: it clips it, "
        "takes its sign or ignores it. Small ones may become 0 in float16. Clip what "
        "tape.gradient returns instead (see docs/loss_scaling.md)"
    )


def _calls_one(operations: Iterable[Any], bodies: Bodies, seen: set[int]) -> bool:
    for operation in operations:
        for body in bodies(operation):
            if id(body) in seen:
                continue
            seen.add(id(body))
            if body in SCALING.bends:
                return True
            if _calls_one(body.get_operations(), bodies, seen):
                return True
    return False
