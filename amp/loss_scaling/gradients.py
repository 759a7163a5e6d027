"""The arithmetic of one gradient call: scale, unscale, and detect overflow.

Called by `integration.training.gradient_hooks` in place of `GradientTape.gradient` and
`tf.gradients`. A *seed* is the incoming gradient of a target (`output_gradients`, or
ones). Scaling all seeds scales all gradients, because gradients are linear in them::

    scale  = scaler.factor()
    grads  = compute(seeds * scale)          # these products get the attribute SEED
    finite = all(is_finite(g) for g in grads)                # in this replica
    scaler.step(finite)                         # before anybody is told of `finite`
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph.ir import SEED, SOURCE, UNSCALE
from amp.loss_scaling import called_backward, eager_backward, provenance, tally
from amp.loss_scaling.finite_checks import (
    Gradient,
    after_step,
    all_of,
    anywhere,
    finite_each,
    scales,
    values_of,
)
from amp.loss_scaling.node_names import apart
from amp.loss_scaling.scaler import Scaler

Compute: TypeAlias = Callable[[list[tf.Tensor]], list[Gradient]]


@dataclasses.dataclass(frozen=True, slots=True)
class GradientPlacement:
    """The scopes in which nodes are built around a gradient call.

    Args:
      mark: returns a scope for an attribute's name, and its text if it has one; nodes
        built in it have that attribute, which is boolean without a text.
      beside: returns a scope for a tensor; nodes built in it are colocated with it.
        By default they are placed as any others.
      label: the text of the attribute SOURCE of nodes that get UNSCALE, "" for none.
      undone: has a call that was just built be one without its scale, if it must be;
        returns whether it is.
    """

    mark: Callable[..., contextlib.AbstractContextManager[None]]
    beside: Callable[[tf.Tensor], contextlib.AbstractContextManager[None]] = anywhere
    label: str = ""
    undone: Callable[[eager_backward.Passing], bool] = lambda now: False

    @contextlib.contextmanager
    def unscaling(self) -> Iterator[None]:
        """The scope of the node that unscales a gradient."""
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(self.mark(UNSCALE))
            if self.label:
                scopes.enter_context(self.mark(SOURCE, text=self.label))
            yield

    def labelled(self, label: str) -> GradientPlacement:
        """The same for a gradient whose scaler and variable this text says."""
        return dataclasses.replace(self, label=label)


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
      owners: for each result the position of its variable among the scaler's source
        variables, None where it is by something else.
      behind: the calls whose gradients went into the targets (`provenance.behind`).
    """

    scaler: Scaler | None
    factor: float
    waits: bool = True
    values: frozenset[int] = frozenset()
    owners: Sequence[int | None] = ()
    behind: tuple[provenance.Call | None, ...] = ()

    def scale(self) -> tf.Tensor:
        """Returns the factor to use now, float32, shape ().

        In a session graph TensorFlow walks back from what a custom gradient returns, as
        far as there are gradients, and takes all variables there for the program's.
        """
        if self.scaler is None:
            return tf.constant(self.factor, tf.float32)
        factor = self.scaler.factor()
        session = not (tf.executing_eagerly() or tf.inside_function())
        return tf.stop_gradient(factor) if session else factor

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

    def label(self, index: int) -> str:
        """The text of the attribute SOURCE for a result, "" where it has none."""
        owner = self.owners[index] if self.owners else None
        return "" if owner is None or not self.scaler else self.scaler.label(owner)

    def step(self, finite: tf.Tensor, checks: Mapping[int, tf.Tensor]) -> list[Any]:
        """Tells the scaler whether the gradients of a call are finite.

        Args:
          finite: whether all are, bool, shape ().
          checks: whether each of them is, by position.

        Returns:
          Operations that have to run before the gradients are used.
        """
        if self.scaler is None:
            return []
        counted = tally.added(checks, self.owners, len(self.scaler.names))
        step = self.scaler.step(finite, waits=self.waits, counted=counted)
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
    unscaled = called_backward.eagerly()
    with apart():
        scale = tf.ones([]) if unscaled else scaling.scale()
        scaled_seeds = scale_seeds(targets, seeds, scale, placing)
    now = eager_backward.Passing(scale, placing)
    with eager_backward.passes(now):
        grads = compute(scaled_seeds)
    if not any(map(scales, grads)):
        return grads
    unscaled = unscaled or placing.undone(now)
    if unscaled:
        called_backward.tell(scaling.scaler.line if scaling.scaler else "")
    scaling = dataclasses.replace(
        scaling, behind=provenance.behind([*targets, *(seeds or ())])
    )
    with apart():
        scale = tf.ones([]) if unscaled else scale
        return _unscaled(scaling, grads, scale, placing)


def _unscaled(
    scaling: Scaling,
    grads: Sequence[Gradient],
    scale: tf.Tensor,
    placing: GradientPlacement,
) -> list[Gradient]:
    """Unscales the gradients of a call, after their check has moved the scale."""
    checks = finite_each(grads, placing.beside)
    finite = all_of(checks)
    with tf.control_dependencies(scaling.step(finite, checks)):
        wide = {_inverse_dtype(grad) for grad in grads if scales(grad)}
        whole = _whole(finite, scaling.behind)
        inverses = {dtype: scaling.inverse(scale, whole, dtype) for dtype in wide}
        results = [
            marked(grad, placing)
            if index in scaling.values
            else unscale(
                grad,
                inverses.get(_inverse_dtype(grad)),
                placing.labelled(scaling.label(index)),
            )
            for index, grad in enumerate(grads)
        ]
        session = scaling.scaler is not None and scaling.scaler.in_session
        told = after_step(finite, session)
    if scaling.scaler is not None:
        call = provenance.Call(
            scaling.scaler, told, scaling.waits, behind=scaling.behind
        )
        scaled_results = [results[index] for index in checks]
        provenance.note(call, scaled_results, list(checks.values()))
    return results


def _whole(finite: tf.Tensor, behind: Sequence[provenance.Call | None]) -> tf.Tensor:
    """Whether nothing overflowed in a call, nor in one that its targets are made of.

    Zeros of that one may have made these gradients finite, and wrong.
    """
    told = [call.finite for call in behind if call is not None]
    return tf.reduce_all(tf.stack([finite, *told])) if told else finite


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
        with placing.unscaling():
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
        with apart(), placing.unscaling():
            return tf.identity(values)

    return _on_values(grad, identity, placing)


def _on_values(
    grad: Gradient, change: Callable[[tf.Tensor], tf.Tensor], placing: GradientPlacement
) -> Gradient:
    if not scales(grad):
        return grad
    with placing.beside(values_of(grad)):
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
        return change(grad)


def _inverse_dtype(grad: Gradient) -> Any:
    double = scales(grad) and grad.dtype in (tf.float64, tf.complex128)
    return tf.float64 if double else tf.float32
