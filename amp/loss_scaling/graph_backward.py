"""Backward functions that Python gives, in graphs: some see no loss scale.

The scale passes through those of a `tf.custom_gradient` that are linear, whose small
values 16 bits would lose. Around one that is certain not to be, because it clips what
comes in, takes its sign or leaves it out (`homogeneity`), nodes are put::

    unscaled = MulNoNan(grad, 1 / scale)            # with UNSCALE, so in float32
    results  = backward(unscaled) * scale           # with SEED
               infinite if a value of `unscaled` is not finite

so that it gives what it gives in float32. It is certain once the function was called,
so what it has built is made to read `unscaled` then: a function may have an effect, or
be one that can be called once only. But a tape that records it has noted what it read.
There it is called once more, and nothing reads what was built first.

What one does eagerly is not decided here, nor what becomes of one that is inside of a
function (`called_backward`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph.ir import SEED
from amp.graph_rewrite.ops.structure import PYTHON
from amp.loss_scaling import (
    called_backward,
    gradients,
    group,
    homogeneity,
    provenance,
)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Editing:
    """What is to be done with a graph that is being built, and is private TensorFlow.

    Attributes:
      brought: returns a tensor of a graph around as one of the graph that is being
        built; None if it cannot be there.
      apart: returns the graph of a function's gradient if that is being built.
      recorded: whether a tape records what is computed of tensors.
      redirect: has an operation read, at the position given, another tensor.
      functions: see `homogeneity.Functions`.
      attempt: returns what a function returns, None if it fails.
    """

    brought: Callable[[tf.Tensor], tf.Tensor | None]
    apart: Callable[[], Any]
    recorded: Callable[[Sequence[tf.Tensor]], bool]
    redirect: Callable[[Any, int, tf.Tensor], None]
    functions: homogeneity.Functions
    attempt: Callable[[Callable[[], Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Called:
    """What a call of a backward function has built: operations, of what, for what."""

    operations: Sequence[Any]
    given: Sequence[tf.Tensor]
    found: Any


def without_scale(backward: Backward, editing: Editing) -> Backward:
    """The same function, which sees gradients without the scale if it bends them.

    Args:
      backward: as of `eager_backward.without_scale`.
      editing: see there.
    """

    @functools.wraps(backward)
    def unscaled(*grads: Any, **kwargs: Any) -> Any:
        now, graph = passing(), tf.compat.v1.get_default_graph()
        function = editing.apart()
        if function is None and (now is None or not tf.is_symbolic_tensor(now.scale)):
            return backward(*grads, **kwargs)
        before = len(graph.get_operations())
        found = backward(*grads, **kwargs)
        given = [leaf for leaf in leaves(grads) if isinstance(leaf, tf.Tensor)]
        called = _Called(graph.get_operations()[before:], given, found)
        if any(each.graph is not graph for each in given):
            return found
        if function is not None:
            if _bends(called, None, editing.functions):
                called_backward.note(function)
            return found
        assert now is not None
        bends = _bends(called, now, editing.functions)
        scale = editing.brought(now.scale) if bends else None
        if scale is None:
            return found
        here = dataclasses.replace(now, scale=scale)
        return _made_whole(
            called, grads, lambda wide: backward(*wide, **kwargs), here, editing
        )

    keep_signature(unscaled, backward)
    return unscaled


def _made_whole(
    called: _Called,
    grads: Any,
    again: Callable[[Any], Any],
    here: Passing,
    editing: Editing,
) -> Any:
    """The results of a function that bends gradients, as of one that does not.

    Args:
      called: what a call of it has built.
      grads: what came in.
      again: calls it with others in their place.
      here: what passes, with the scale in the graph that is being built.
      editing: see there.
    """
    with apart(), _around(here):
        wide = _unscaled(grads, here)
    found = None
    if editing.recorded(called.given) and not any(map(_has_effect, called.operations)):
        with passes(None):
            found = editing.attempt(lambda: again(wide))
    with apart(), _around(here):
        if found is None:
            pairs = zip(leaves(grads), leaves(wide), strict=True)
            found = _redirected(called, pairs, here.scale, editing)
        results = _scaled(found, leaves(wide), here)
    with _around(here):
        # TensorFlow 1's loops know a gradient call by the names of what it has built.
        results = tf.nest.map_structure(_named, results, expand_composites=True)
    floats = [each for each in called.given if scales(each)]
    tensors = (leaf for leaf in leaves(results) if isinstance(leaf, tf.Tensor))
    here.made_whole.update((tensor.ref(), floats) for tensor in tensors)
    return results


def _bends(
    called: _Called, now: Passing | None, functions: homogeneity.Functions
) -> bool:
    """Whether a backward function is not linear, and may be given something else.

    Not one that computes in 16 bits or 8 itself, as Keras' float8 layers do, which
    return more than gradients; nor one that reads the scale, and so is right as it is.
    One that Python computes in the graph may be, and loses nothing where it is taken
    for one: it is in float32 anyway.
    """
    made, given = called.operations, called.given
    if any(map(_is_narrow, (*given, *(out for op in made for out in op.outputs)))):
        return False
    floats = [each for each in given if scales(each)]
    results = [tensor_of(leaf) for leaf in leaves(called.found)]
    some = [each for each in results if each is not None and each.dtype.is_floating]
    known = homogeneity.Known(functions, {} if now is None else now.made_whole)
    if not homogeneity.bent(made, floats, some, known, hidden=now is not None):
        return False
    around = set() if now is None else now.around
    read = {each.ref() for op in made if op not in around for each in op.inputs}
    read -= {out.ref() for op in around for out in op.outputs}
    read -= {each.ref() for each in floats}
    return _scales(now).isdisjoint(_handles(read))


def _scales(now: Passing | None) -> set[Any]:
    """The variables of the scale that passes, of all scales where none is known."""
    if now is not None:
        return _handles([now.scale.ref()])
    variables = (scaler.scale for scaler in group.current().living())
    handles = (getattr(each, "handle", None) for each in variables)
    return {each.ref() for each in handles if each is not None}


def _has_effect(operation: Any) -> bool:
    told = not operation.outputs or operation.type in PYTHON
    return bool(operation.op_def.is_stateful and told)


def _is_narrow(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size < tf.float32.size)


def _handles(tensors: Iterable[Any]) -> set[Any]:
    """The variables that numbers are computed of: handles, as references.

    What is computed of anything but numbers is no multiple of the scale.
    """
    waiting, seen, reading = list(tensors), set[Any](), provenance.Reading()
    while waiting:
        reference = waiting.pop()
        tensor = reference.deref()
        number = tensor.shape.rank == 0 or tensor.dtype == tf.resource
        if number and reference not in seen:
            seen.add(reference)
            if tf.is_symbolic_tensor(tensor):
                waiting += [each.ref() for each in reading.of(tensor.op)]
    return {each for each in seen if each.deref().dtype == tf.resource}


@contextlib.contextmanager
def _around(here: Passing) -> Iterator[None]:
    """A scope in which what is built is noted as built around functions."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    here.around.update(graph.get_operations()[before:])


def _redirected(
    called: _Called,
    pairs: Iterable[tuple[Any, Any]],
    scale: tf.Tensor,
    editing: Editing,
) -> Any:
    """Has what a call built read unscaled gradients, and returns its results.

    Functions in it that bend them too have unscaled them by then: no scale is left for
    these.
    """
    instead = {old.ref(): new for old, new in pairs if old is not new}
    instead[scale.ref()] = tf.ones([])
    for operation in called.operations:
        for index, tensor in enumerate(operation.inputs):
            if tensor.ref() in instead:
                editing.redirect(operation, index, instead[tensor.ref()])

    def redirected(leaf: Any) -> Any:
        tensor = isinstance(leaf, tf.Tensor)
        return instead.get(leaf.ref(), leaf) if tensor else leaf

    return tf.nest.map_structure(redirected, called.found, expand_composites=True)


def _unscaled(grads: Any, now: Passing) -> Any:
    def unscaled(leaf: Any) -> Any:
        if not scales(leaf):
            return leaf
        inverse = tf.stop_gradient(1.0 / tf.cast(now.scale, leaf.dtype))
        return gradients.unscale(leaf, inverse, now.placing)

    return tf.nest.map_structure(unscaled, grads, expand_composites=True)


def _named(leaf: Any) -> Any:
    """The same gradient, as an operation in the scope of the gradient call."""
    named = isinstance(leaf, tf.Tensor) and scales(leaf)
    return tf.identity(leaf) if named else leaf


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
