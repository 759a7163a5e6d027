"""The arithmetic of one gradient call: scale, unscale, and detect overflow.

Called by `integration.training.gradient_hooks` in place of `GradientTape.gradient` and
`tf.gradients`. A *seed* is the incoming gradient of a target (`output_gradients`, or
ones). Scaling all seeds scales all gradients, because gradients are linear in them::

    scale  = scaler.factor()
    grads  = compute(seeds * scale)          # these products get the attribute SEED
    finite = all(is_finite(g) for g in grads)                # in this replica
    scaler.step(finite)
    return [MulNoNan(g, 1 / scale if finite else 0) for g in grads]   # with UNSCALE

`MulNoNan(x, 0)` is 0 for every x, also if x is infinite or NaN. So after an overflow a
program that updates by hand gets exact zeros (NaN if the rule's `on_overflow` says so);
optimizers skip the update. float64 gradients are multiplied by a float64 inverse.

Public TensorFlow only. Which calls are scaled, by which scaler, and how a node gets an
attribute is not decided here.
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
    """The scopes in which nodes are built around a gradient call.

    Args:
      mark: returns a scope for an attribute's name; nodes built in it have the boolean
        attribute of that name.
      beside: returns a scope for a tensor; nodes built in it are colocated with it.
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
      scaler: has the scale, and is told whether gradients overflowed. None for a fixed
        factor, where replicas cannot share a scaler.
      factor: the fixed factor if there is no scaler.
      waits: whether an overflow is kept until an optimizer has skipped an update for it
        (see `Scaler.overflow`).
      values: positions of results that are not gradients but new values of variables
        (the histories of Keras' float8 layers). These are not unscaled.
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
        """Returns what gradients are multiplied by: 1/scale, or 0 after an overflow.

        A second gradient call, of these gradients, treats it as a constant.

        Args:
          scale: what the seeds were multiplied by.
          finite: whether all gradients are finite, bool, shape ().
          dtype: of the result: float32, or float64 for float64 gradients.
        """
        nan = self.scaler is not None and self.scaler.settings.on_overflow == "nan"
        overflow = tf.constant(math.nan if nan else 0.0, dtype)
        inverse = tf.where(finite, 1.0 / tf.cast(scale, dtype), overflow)
        return inverse if tf.executing_eagerly() else tf.stop_gradient(inverse)

    def step(self, finite: tf.Tensor) -> list[Any]:
        """Tells the scaler whether the gradients of a call are finite.

        Returns:
          Operations that have to run before the gradients are used.
        """
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
    """Makes a gradient call with loss scaling, as in this module's docstring.

    Args:
      scaling: the scaler, or a fixed factor.
      targets: what is differentiated, float32 or float64.
      seeds: the incoming gradient of each target; None for ones.
      compute: the gradient call itself: takes the scaled seeds, returns gradients.
      placing: the scopes in which nodes are built.

    Returns:
      The unscaled gradients, in the order in which `compute` returned them.
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
    """Whether every gradient is finite, bool, shape ().

    Rows of IndexedSlices with the same index are summed first, because optimizers sum
    them, and a sum of finite rows may overflow.
    """
    checks = []
    for grad in grads:
        if _scales(grad):
            with placing.beside(values_of(grad)):
                checks.append(tf.reduce_all(_is_finite(_deduplicated(grad))))
    if not checks:
        return tf.constant(True)
    return tf.reduce_all(tf.stack(checks)) if len(checks) > 1 else checks[0]


def unscale(
    grad: Gradient, inverse: tf.Tensor | None, placing: GradientPlacement
) -> Gradient:
    """Returns a gradient times `inverse`, in its own dtype.

    The multiplication has the attribute UNSCALE: the rewriter keeps it, and everything
    computed from it, in float32.

    Args:
      grad: a tensor, IndexedSlices (whose values are multiplied), or None.
      inverse: 1/scale, or 0 after an overflow; float32 or float64, shape ().
      placing: the scopes in which nodes are built.
    """

    def multiply(values: tf.Tensor) -> tf.Tensor:
        half = values.dtype in (tf.float16, tf.bfloat16)
        wide = tf.cast(values, tf.float32) if half else values
        factor = tf.cast(inverse, wide.dtype)
        with placing.mark(UNSCALE):
            wide = tf.raw_ops.MulNoNan(x=wide, y=factor)
        return tf.cast(wide, values.dtype)

    return _on_values(grad, multiply, placing)


def divide(grad: Gradient, scale: tf.Tensor, placing: GradientPlacement) -> Gradient:
    """Returns a gradient over the scale, as `unscale` does; infinities stay.

    Args:
      grad: a tensor, IndexedSlices, or None.
      scale: float32, shape ().
      placing: the scopes in which nodes are built.
    """
    inverse = 1.0 / tf.cast(scale, _inverse_dtype(grad))
    return unscale(grad, tf.stop_gradient(inverse), placing)


def marked(grad: Gradient, placing: GradientPlacement) -> Gradient:
    """Returns a gradient through an Identity with the attribute UNSCALE.

    For gradients that are not scaled, so that the update computed from them stays
    float32. An eager gradient is returned as it is.
    """
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
    with placing.beside(values_of(grad)):
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
        return change(grad)


def _scales(grad: Gradient) -> bool:
    """Whether a gradient is a number that was scaled: not None, and not an integer."""
    if grad is None:
        return False
    return bool(grad.dtype.is_floating or grad.dtype.is_complex)


def _inverse_dtype(grad: Gradient) -> Any:
    double = _scales(grad) and grad.dtype in (tf.float64, tf.complex128)
    return tf.float64 if double else tf.float32


def values_of(grad: Gradient) -> Any:
    """The tensor of a gradient: that of the rows of IndexedSlices."""
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
