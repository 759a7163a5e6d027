"""Loss scaling by hand: functions of `amp.loss_scaling` that know scopes and hooks.

For programs that take gradients which the hooks of `training` do not scale, or that do
not want one scaled. The scalers and the arithmetic are those of the hooks; no rule is
here, and no update (`own_updates`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from amp.errors import LossScaleError
from amp.graph_rewrite.graph import ir
from amp.integration import active
from amp.integration.distributed import replicas, workers
from amp.integration.install import install
from amp.integration.training import (
    agreement,
    gradient_sources,
    markers,
    scaled_losses,
)
from amp.loss_scaling import finite_checks, gradients, provenance, scale_text, state
from amp.loss_scaling.placement import ScalerSite
from amp.loss_scaling.scale import DynamicLossScale, LossScale, NoLossScale
from amp.loss_scaling.scaler import Scaler

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _as_written(function: _Function) -> _Function:
    """Has AutoGraph leave a function as it is, where users' functions call it."""
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


_PLACING = gradients.GradientPlacement(mark=markers.attribute_scope)
# Of gradients that go on into a loss, only the product itself stays float32.
_INNER = gradients.GradientPlacement(mark=lambda name: markers.attribute_scope(ir.KEEP))


@contextlib.contextmanager
def off() -> Iterator[None]:
    """A scope in which gradients are taken without loss scaling.

    For gradients that are only looked at: they have no scaler, and no overflow of
    theirs skips an update. Functions called in it are traced again. Everything else
    runs by the policy in force, and without one the scope has no effect.
    """
    now, owner = active.active(), object()
    if now is None or now.settled.policy is None:
        yield
        return
    policy = dataclasses.replace(now.settled.policy, loss_scale=NoLossScale())
    settled = dataclasses.replace(now.settled, policy=policy)
    active.push(dataclasses.replace(now, settled=settled), owner)
    try:
        yield
    finally:
        active.pop(owner)


@_as_written
def scaler_for(
    variables: Any, rule: LossScale | str | float | None = None, name: str = ""
) -> Scaler:
    """Returns a scaler to scale by hand with; the same one each time this line runs.

    It is one of `scalers()`, is saved with them, and lives as long as one of its
    variables.
    Optimizers leave out their update of these variables after an overflow, also if no
    policy is in force.

    Args:
      variables: those by which the gradient is taken, of TensorFlow or Keras.
      rule: as `loss_scale` of a policy; by default that of the policy in force, and
        "dynamic" without one.
      name: what it is called; by default it is called after its variables.

    Raises:
      LossScaleError: no variables, or a strategy whose replicas cannot agree.
      PolicyError: a rule that is not understood.
    """
    install()
    sources = gradient_sources.given(variables, "scaler_for(variables, ...)")
    strategy = tf.distribute.get_strategy()
    alone = strategy.num_replicas_in_sync == 1
    if not alone and not replicas.ever_agree():
        raise LossScaleError(
            "a loss scale under a strategy whose replicas cannot agree",
            where=f"scaler_for, under {type(strategy).__name__}",
            allowed="MirroredStrategy and MultiWorkerMirroredStrategy outside of "
            "session graphs, and strategies with one replica",
            remedy="take one of these, or scale by a fixed number",
        )
    place = ScalerSite(
        agreed=alone,
        same=workers.same,
        agree=agreement.agree,
        name=str(name),
        lasts=True,
        make=resource_variable_ops.ResourceVariable,
    )
    return state.find(gradient_sources.call_site(), sources, _rule(rule), place)


def _rule(rule: Any) -> LossScale:
    """The rule that a user asks for, by default the one in force, else "dynamic"."""
    if rule is None:
        rule = active.active_loss_scale() or "auto"
    parsed = scale_text.parse(rule, where="scaler_for(rule=...)")
    return DynamicLossScale() if isinstance(parsed, str) else parsed


@_as_written
def scale_loss(loss: Any, scaler: Scaler) -> Any:
    """Returns a loss times the scale of a scaler.

    The gradient of the result, or in a graph of what is computed from it, is not scaled
    a second time by the policy in force. It has to go through `unscale`.

    Args:
      loss: float32 or float64, of any shape; or a structure of such tensors.
      scaler: what `scaler_for` returned, or one of `scalers()`.

    Raises:
      LossScaleError: a loss of another type.
    """
    return tf.nest.map_structure(lambda each: _scaled(each, scaler), loss)


def _scaled(loss: Any, scaler: Scaler) -> tf.Tensor:
    loss = tf.convert_to_tensor(loss)
    if not gradients.scalable([loss]):
        raise LossScaleError(
            f"a loss of type {loss.dtype.name}",
            where="scale_loss",
            allowed="float32 or float64: in 16 bits a loss times its scale overflows",
            remedy="cast the loss first: scale_loss(tf.cast(loss, tf.float32), scaler)",
        )
    factor = tf.stop_gradient(tf.cast(_factor(scaler), loss.dtype))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scaled(values: tf.Tensor) -> Any:
        return _times(values, factor), lambda incoming: _times(incoming, factor)

    result: tf.Tensor = scaled(loss)
    scaled_losses.note(result)
    return result


def _times(values: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    with markers.attribute_scope(ir.KEEP):
        return tf.multiply(values, factor)


def _factor(scaler: Scaler) -> tf.Tensor:
    """The scale of the step; in a session graph one tensor, whatever is run before."""
    if scaler.in_session and scaler.settings.bounds is not None:
        return tf.convert_to_tensor(scaler.value)
    return scaler.factor()


@_as_written
def unscale(
    grads: Any, scaler: Scaler, *, inner: bool = False
) -> tuple[Any, tf.Tensor]:
    """Returns gradients of a scaled loss over the scale, and whether they are finite.

    Infinite values stay infinite. The scale changes when `scaler.update` is called.

    Args:
      grads: a structure of tensors, IndexedSlices, variables that gradients were summed
        in, arrays, and None.
      scaler: that of `scale_loss`.
      inner: whether they go on into a loss, as in a gradient penalty, and not into an
        update. An overflow then shows in that loss and its gradient.

    Returns:
      The unscaled gradients, and a flag: bool, shape ().
    """
    flat = [finite_checks.as_gradient(each) for each in tf.nest.flatten(grads)]
    placing = _INNER if inner else _PLACING
    finite = finite_checks.all_of(finite_checks.finite_each(flat, placing.beside))
    scale = _factor(scaler)
    noted = [] if inner else [tf.group(*_noted(scaler, finite))]
    with tf.control_dependencies([each for each in noted if each is not None]):
        results = [gradients.divide(grad, scale, placing) for grad in flat]
        told = finite_checks.after_step(finite, scaler.in_session)
    if inner:
        scaled_losses.note_unscaled(results)
    else:
        behind = provenance.behind(flat)
        call = provenance.Call(scaler, told, moved=True, behind=behind)
        provenance.note(call, results)
    return tf.nest.pack_sequence_as(grads, results), finite


def _noted(scaler: Scaler, finite: tf.Tensor) -> list[Any]:
    with scaler.ready():
        return scaler.note(finite)
