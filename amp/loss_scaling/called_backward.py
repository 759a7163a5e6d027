"""Backward functions inside functions that are called: gradients behind are not scaled.

The gradient of a function is a graph of its own, which TensorFlow makes once for all
that call it: the scale of a call cannot be in it. If a backward function in it is
certain not to be linear (`graph_backward`), a gradient call that calls this graph is
made as if its scale were 1. An eager gradient call runs such a graph by itself, and
only this one sees no scale then, as any function that Python gives (`eager_backward`).

Which graph a function's gradient is, is not decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.loss_scaling import eager_backward
from amp.loss_scaling.eager_backward import Backward, Passing
from amp.loss_scaling.process import SCALING

_LOG = logging.getLogger("amp")  # Python's own, without a handler of ours
# Not a str: meta graphs are exported with the collections that have a str key.
_BENDS = ("amp", "bends")

# Gives the graphs of the functions that an operation calls or has for branches.
Bodies: TypeAlias = Callable[[Any], Sequence[Any]]


def note(graph: Any) -> None:
    """Notes that a function's gradient, whose graph is being built, is not linear."""
    graph.add_to_collection(_BENDS, True)
    SCALING.bends = True


def without_scale(
    backward: Backward, graph: Any, bodies: Bodies, name: str
) -> Backward:
    """The gradient of a function, as eager gradient calls are to run it.

    Args:
      backward: runs the graph, as of `eager_backward.without_scale`.
      graph: of the function's gradient.
      bodies: see there.
      name: of the function, for the warning.
    """
    if not SCALING.bends or not _bends(graph, bodies, set()):
        return backward
    apart = eager_backward.without_scale(backward)

    def told(*grads: Any) -> Any:
        now = eager_backward.passing()
        if now is not None and not tf.is_symbolic_tensor(now.scale):
            tell(f" of function '{name}'")
        return apart(*grads)

    return told


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


def tell(which: str) -> None:
    """Says, once, that gradients are not scaled.

    Args:
      which: of which call, or of what; "" where it is not known.
    """
    text = (
        f"gradients{which} are not scaled: a function on the way has a "
        "tf.custom_gradient in it that is not linear in what comes in: it clips it, "
        "takes its sign or ignores it. Small ones may become 0 in float16. Clip what "
        "tape.gradient returns instead (see docs/loss_scaling.md)"
    )
    if text not in SCALING.told:
        SCALING.told.add(text)
        _LOG.warning("amp: %s", text)


def _calls_one(operations: Iterable[Any], bodies: Bodies, seen: set[int]) -> bool:
    return any(
        _bends(body, bodies, seen)
        for operation in operations
        for body in bodies(operation)
    )


def _bends(graph: Any, bodies: Bodies, seen: set[int]) -> bool:
    """Whether a graph that was not seen yet is noted, or calls one that is."""
    if id(graph) in seen:
        return False
    seen.add(id(graph))
    noted = bool(graph.get_collection(_BENDS))
    return noted or _calls_one(graph.get_operations(), bodies, seen)
