"""Gradient arithmetic: seeds times the scale, results by its inverse, overflow found.

Public TensorFlow only. Which gradient call is scaled, which scaler serves it and how an
operation gets an attribute is decided by the caller.

A scaled gradient call, in order::

    scale  = scaler.factor()
    grads  = compute(seeds * scale)            # the products carry SEED
    finite = all(is_finite(g) for g in grads)           # this replica's
    scaler.step(finite)
    return [MulNoNan(g, 1 / scale if finite else 0) for g in grads]    # carry UNSCALE
           (what is no gradient but its variable's new value: as it is)

`MulNoNan(x, 0)` is 0 for every x, infinite and NaN included, so an update by hand sees
exact zeros where an optimizer skips its step (NaN, if the rule's `on_overflow` asks for
it). float64 gradients are multiplied by a float64 inverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph.ir import SEED, UNSCALE
from amp.loss_scaling import provenance
from amp.loss_scaling.scaler import Scaler

Gradient: TypeAlias = Any  # tf.Tensor | tf.IndexedSlices | None
Compute: TypeAlias = Callable[[list[tf.Tensor]], list[Gradient]]


@dataclasses.dataclass(frozen=True, slots=True)
class GradientPlacement:
    """How nodes are built.

    Args:
      mark: makes a scope whose nodes carry a boolean attribute of that name.
      beside: makes a scope whose nodes are colocated with a tensor.
    """

    mark: Callable[[str], contextlib.AbstractContextManager[None]]
    beside: Callable[[tf.Tensor], contextlib.AbstractContextManager[None]]


def scalable(targets: Sequence[object]) -> bool:
    """Whether all targets are plain tensors of float32 or float64."""
    return bool(targets) and all(
        isinstance(target, tf.Tensor) and target.dtype in (tf.float32, tf.float64)
        for target in targets
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Scaling:
    """What a gradient call is scaled by.

    Args:
      scaler: the state to read and step; None (where replicas cannot have one) for a
        fixed factor.
      factor: the factor without a scaler.
      waits: whether an overflow waits for an optimizer to answer it.
      values: which results are no gradients but new values of their variables, and are
        handed on as they are.
    """

    scaler: Scaler | None
    factor: float
    waits: bool = True
    values: frozenset[int] = frozenset()

    def scale(self) -> tf.Tensor:
        """Returns the factor to use now, float32, shape ()."""
        if self.scaler is None:
            return tf.constant(self.factor, tf.float32)
        return self.scaler.factor()

    def inverse(self, scale: tf.Tensor, finite: tf.Tensor, dtype: Any) -> tf.Tensor:
        """Returns what gradients are multiplied by, constant to gradients of these.

        Args:
          scale: the factor of the seeds.
          finite: whether all gradients are, bool, shape ().
          dtype: float32 or float64, at least as precise as the gradient.
        """
        nan = self.scaler is not None and self.scaler.settings.on_overflow == "nan"
        overflow = tf.constant(math.nan if nan else 0.0, dtype)
        inverse = tf.where(finite, 1.0 / tf.cast(scale, dtype), overflow)
        return inverse if tf.executing_eagerly() else tf.stop_gradient(inverse)

    def step(self, finite: tf.Tensor) -> list[Any]:
        """Answers the call; returns what is to run before its gradients are used."""
        if self.scaler is None:
            return []
        step = self.scaler.step(finite, waits=self.waits)
        return [] if step is None else [step]


def scaled(
    scaling: Scaling,
    targets: Sequence[tf.Tensor],
    seeds: Sequence[Any] | None,
    compute: Compute,
    placing: GradientPlacement,
) -> list[Gradient]:
    """Returns the gradients that `compute` gives for `seeds`, with loss scaling around.

    Args:
      scaling: the factor, and what remembers it.
      targets: what is differentiated, float32 or float64.
      seeds: incoming gradient of each target, None for ones.
      compute: seeds to gradients.
      placing: how nodes are built.
    """
    scale = scaling.scale()
    grads = compute(scale_seeds(targets, seeds, scale, placing))
    if not any(map(_scales, grads)):
        return grads
    finite = all_finite(grads, placing)
    with tf.control_dependencies(scaling.step(finite)):
        wide = {_inverse_dtype(grad) for grad in grads if _scales(grad)}
        inverses = {dtype: scaling.inverse(scale, finite, dtype) for dtype in wide}
        results = [
            marked(grad, placing)
            if index in scaling.values
            else unscale(grad, inverses.get(_inverse_dtype(grad)), placing)
            for index, grad in enumerate(grads)
        ]
    if scaling.scaler is not None:
        call = provenance.Call(scaling.scaler, finite, scaling.waits)
        pairs = zip(grads, results, strict=True)
        provenance.note(call, [result for grad, result in pairs if _scales(grad)])
    return results


def scale_seeds(
    targets: Sequence[tf.Tensor],
    seeds: Sequence[Any] | None,
    scale: tf.Tensor,
    placing: GradientPlacement,
) -> list[Any]:
    """Returns each target's incoming gradient (ones by default) times the scale."""
    seeds = [None] * len(targets) if seeds is None else seeds
    pairs = zip(targets, seeds, strict=True)
    return [_scale_seed(target, seed, scale, placing) for target, seed in pairs]


def _scale_seed(
    target: tf.Tensor, seed: Any, scale: tf.Tensor, placing: GradientPlacement
) -> tf.Tensor:
    with placing.beside(target):
        if seed is None:
            known = target.shape.is_fully_defined()
            seed = tf.ones(target.shape if known else tf.shape(target), target.dtype)
        else:
            seed = tf.convert_to_tensor(seed)
        factor = tf.cast(scale, seed.dtype)
        with placing.mark(SEED):
            return tf.multiply(seed, factor)


def all_finite(grads: Sequence[Gradient], placing: GradientPlacement) -> tf.Tensor:
    """Whether every gradient is finite, bool, shape (); duplicate rows are summed."""
    checks = []
    for grad in grads:
        if _scales(grad):
            with placing.beside(_values(grad)):
                checks.append(tf.reduce_all(_is_finite(_deduplicated(grad))))
    return tf.reduce_all(tf.stack(checks)) if len(checks) > 1 else checks[0]


def unscale(
    grad: Gradient, inverse: tf.Tensor | None, placing: GradientPlacement
) -> Gradient:
    """Returns a gradient times `inverse`, by one marked node, in its own dtype.

    Args:
      grad: a tensor, IndexedSlices (the values only), or None.
      inverse: 1/scale, or 0 after an overflow; float32 or float64, shape ().
      placing: how nodes are built.
    """

    def multiply(values: tf.Tensor) -> tf.Tensor:
        half = values.dtype in (tf.float16, tf.bfloat16)
        wide = tf.cast(values, tf.float32) if half else values
        factor = tf.cast(inverse, wide.dtype)
        with placing.mark(UNSCALE):
            wide = tf.raw_ops.MulNoNan(x=wide, y=factor)
        return tf.cast(wide, values.dtype)

    return _on_values(grad, multiply, placing)


def marked(grad: Gradient, placing: GradientPlacement) -> Gradient:
    """Returns a gradient through one marked Identity; as it is when eager."""
    if tf.executing_eagerly():
        return grad

    def identity(values: tf.Tensor) -> tf.Tensor:
        with placing.mark(UNSCALE):
            return tf.identity(values)

    return _on_values(grad, identity, placing)


def _on_values(
    grad: Gradient, change: Callable[[tf.Tensor], tf.Tensor], placing: GradientPlacement
) -> Gradient:
    if not _scales(grad):
        return grad
    with placing.beside(_values(grad)):
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
        return change(grad)


def _scales(grad: Gradient) -> bool:
    """Whether a gradient carries the scale: not None, nor the zeros of an integer."""
    if grad is None:
        return False
    return bool(grad.dtype.is_floating or grad.dtype.is_complex)


def _inverse_dtype(grad: Gradient) -> Any:
    double = _scales(grad) and grad.dtype in (tf.float64, tf.complex128)
    return tf.float64 if double else tf.float32


def _values(grad: Gradient) -> tf.Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _deduplicated(grad: Gradient) -> tf.Tensor:
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    # As many segments as rows keeps the shape static, which XLA needs.
    rows = tf.unique(tf.reshape(grad.indices, [-1]), out_idx=tf.int32).idx
    return tf.math.unsorted_segment_sum(grad.values, rows, tf.shape(grad.values)[0])


def _is_finite(values: tf.Tensor) -> tf.Tensor:
    if values.dtype.is_complex:
        parts = (tf.math.real(values), tf.math.imag(values))
        return tf.logical_and(*map(tf.math.is_finite, parts))
    return tf.math.is_finite(values)
