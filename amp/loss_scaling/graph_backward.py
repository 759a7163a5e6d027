"""Backward functions that Python gives, in graphs: some see no loss scale.

The scale passes through those of a `tf.custom_gradient` that are linear, whose small
values 16 bits would lose. One that is certain not to be, because it clips what comes
in, takes its sign or leaves it out (`homogeneity`), is built once more behind::

    unscaled = MulNoNan(grad, 1 / scale)            # with UNSCALE, so in float32
    results  = backward(unscaled) * scale           # with SEED
               infinite if a value of `unscaled` is not finite

so that it gives what it gives in float32. What was built first is read by nothing.

What one does eagerly is not decided here, and nothing of a function inside the gradient
call, whose graph does not have the scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph.ir import SEED
from amp.loss_scaling import gradients, homogeneity
from amp.loss_scaling.eager_backward import (
    Backward,
    Passing,
    keep_signature,
    leaves,
    passes,
    passing,
    tensor_of,
)
from amp.loss_scaling.finite_checks import scales
from amp.loss_scaling.node_names import apart


def without_scale(backward: Backward) -> Backward:
    """The same function, which sees gradients without the scale if it bends them.

    Args:
      backward: as of `eager_backward.without_scale`.
    """

    @functools.wraps(backward)
    def unscaled(*grads: Any, **kwargs: Any) -> Any:
        now, graph = passing(), tf.compat.v1.get_default_graph()
        if now is None or not tf.is_symbolic_tensor(now.scale):
            return backward(*grads, **kwargs)
        before = len(graph.get_operations())
        found = backward(*grads, **kwargs)
        given = [leaf for leaf in leaves(grads) if isinstance(leaf, tf.Tensor)]
        here = all(tensor.graph is graph for tensor in (now.scale, *given))
        if not here or not _bends(graph.get_operations()[before:], given, found, now):
            return found
        with apart():
            wide = _unscaled(grads, now)
        with passes(None):
            found = backward(*wide, **kwargs)
        with apart():
            return _scaled(found, leaves(wide), now)

    keep_signature(unscaled, backward)
    return unscaled


def _bends(
    made: Sequence[Any], given: Sequence[tf.Tensor], found: Any, now: Passing
) -> bool:
    """Whether a backward function is not linear, and may be built once more.

    Not one that has an effect, which it would have twice; nor one that computes in
    16 bits or 8 itself, as Keras' float8 layers do, which return more than gradients;
    nor one that reads the scale, and so is right as it is.
    """
    if any(op.op_def.is_stateful and not op.outputs for op in made):
        return False
    if any(map(_is_narrow, (*given, *(out for op in made for out in op.outputs)))):
        return False
    floats = [each for each in given if scales(each)]
    results = [tensor_of(leaf) for leaf in leaves(found)]
    some = [each for each in results if each is not None and each.dtype.is_floating]
    if not homogeneity.bent(made, floats, some):
        return False
    read = {i.ref() for op in made for i in op.inputs} - {f.ref() for f in floats}
    return _handles([now.scale.ref()]).isdisjoint(_handles(read))


def _is_narrow(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size < tf.float32.size)


def _handles(tensors: Iterable[Any]) -> set[Any]:
    """The variables that numbers are computed of: handles, as references.

    What is computed of anything but numbers is no multiple of the scale.
    """
    waiting, seen = list(tensors), set[Any]()
    while waiting:
        reference = waiting.pop()
        tensor = reference.deref()
        number = tensor.shape.rank == 0 or tensor.dtype == tf.resource
        if number and reference not in seen:
            seen.add(reference)
            waiting += [each.ref() for each in tensor.op.inputs]
    return {each for each in seen if each.deref().dtype == tf.resource}


def _unscaled(grads: Any, now: Passing) -> Any:
    def unscaled(leaf: Any) -> Any:
        if not scales(leaf):
            return leaf
        inverse = tf.stop_gradient(1.0 / tf.cast(now.scale, leaf.dtype))
        return gradients.unscale(leaf, inverse, now.placing)

    return tf.nest.map_structure(unscaled, grads, expand_composites=True)


def _scaled(found: Any, given: Sequence[Any], now: Passing) -> Any:
    """Gradients with the scale, not finite if what came in was not: an overflow."""
    floats = [leaf for leaf in given if scales(leaf)]
    finite = [tf.reduce_all(tf.math.is_finite(tf.abs(leaf))) for leaf in floats]
    whole = tf.where(tf.reduce_all(tf.stack([True, *finite])), 1.0, math.inf)

    def scaled(leaf: Any) -> Any:
        tensor = tensor_of(leaf)
        if tensor is None or not scales(tensor):
            return leaf
        tensor *= tf.cast(whole, tensor.dtype)
        with now.placing.mark(SEED):
            return tf.multiply(tensor, tf.cast(now.scale, tensor.dtype))

    return tf.nest.map_structure(scaled, found, expand_composites=True)
