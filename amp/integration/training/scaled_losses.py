"""Recognises losses that the program scales itself, by an optimizer wrapper.

These wrappers are Keras' `LossScaleOptimizer` and the like; the hooks here record every
loss that one of them has scaled. `gradient_hooks` then does not scale the gradient of
such a loss a second time. With two scalers, the zeros that ours returns after an
overflow would look finite to the wrapper, and its scale would grow. So the wrapper
scales, unscales and skips as its authors wrote it. Nothing is decided here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence, Set
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration import fallback, wrapping
from amp.integration.process import PROCESS
from amp.loss_scaling.outer_graphs import outward

# Not a str: meta graphs are exported with the collections that have a str key.
_SCALED = ("amp", "scaled_losses")
_UNSCALED = ("amp", "unscaled_again")
_PART = fallback.Part("a loss that the program scales is taken for an unscaled one")
_EAGER_TENSOR = tf.__internal__.EagerTensor


def note(loss: Any) -> None:
    """Records that a tensor is a loss that the program has scaled."""
    fallback.attempt(_PART, lambda: _note(loss), lambda: None)


def _note(loss: Any) -> None:
    if isinstance(loss, _EAGER_TENSOR):
        losses = PROCESS.scaled_losses
        losses[id(loss)] = weakref.ref(loss)
        weakref.finalize(loss, losses.pop, id(loss), None).atexit = False
    elif isinstance(loss, tf.Tensor):
        loss.graph.add_to_collection(_SCALED, loss)


def note_unscaled(grads: Sequence[Any]) -> None:
    """Records gradients of a scaled loss that the program has unscaled by hand.

    What is computed from them, such as a gradient penalty, is not scaled any more.
    """
    for tensor in grads:
        if isinstance(tensor, tf.Tensor) and not isinstance(tensor, _EAGER_TENSOR):
            tensor.graph.add_to_collection(_UNSCALED, tensor)


def scaled(targets: Sequence[Any]) -> bool:
    """Whether any target is a recorded loss or, in a graph, computed from one."""
    return fallback.attempt(_PART, lambda: _scaled(targets), lambda: False)


def _scaled(targets: Sequence[Any]) -> bool:
    tensors = [target for target in targets if isinstance(target, tf.Tensor)]
    eager = [t for t in tensors if isinstance(t, _EAGER_TENSOR)]
    if any(PROCESS.scaled_losses.get(id(t), tuple)() is t for t in eager):
        return True
    built = [t for t in tensors if not isinstance(t, _EAGER_TENSOR)]
    noted = {id(t) for t in built for t in _noted(t.graph, _SCALED)}
    ends = {id(t) for t in built for t in _noted(t.graph, _UNSCALED)}
    return bool(noted) and any(id(t) in noted for t in _origins(built, ends))


def _noted(graph: Any, collection: Any) -> Iterator[Any]:
    """Yields the tensors recorded in a graph and in those around it."""
    for each in outward(graph):
        yield from each.get_collection(collection)


def _origins(tensors: Sequence[Any], ends: Set[int]) -> Iterator[Any]:
    """Yields tensors and all that they are computed from, in outer graphs too.

    Args:
      tensors: where to begin.
      ends: the identities of tensors behind which it does not go.
    """
    waiting, seen = list(tensors), set(ends)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen or isinstance(tensor, _EAGER_TENSOR):
            continue
        seen.add(id(tensor))
        yield tensor
        waiting += tensor.op.inputs
        if facts(tensor.op.type).kind is Kind.PLACEHOLDER:
            captures = getattr(tensor.graph, "captures", ())
            waiting += [outer for outer, inner in captures if inner is tensor]


def _noting(original: wrapping.Function) -> wrapping.Function:
    """Makes a hook of a function that scales a loss, and records its result.

    The result is a tensor, or a function that returns one.
    """

    def scale(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if not callable(made):
            note(made)
            return made

        def loss() -> Any:
            value = made()
            note(value)
            return value

        return loss

    return scale


HOOKS: dict[str, wrapping.Decorate] = {
    "MixedPrecisionLossScaleOptimizer._scale_loss": _noting,
}
KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "LossScaleOptimizer.scale_loss": _noting,
}
TF_KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "LossScaleOptimizer.get_scaled_loss": _noting,
    "LossScaleOptimizerV3.get_scaled_loss": _noting,
}
