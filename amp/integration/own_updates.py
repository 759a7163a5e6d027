"""`amp.loss_scaling.apply_if_finite`: skips the update of an optimizer of one's own.

What decides is what decides for the optimizers that are hooked (`training`); no such
decision is made here, and no gradient is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.errors import LossScaleError
from amp.integration import conversion
from amp.integration.distributed import replicas
from amp.integration.install import install
from amp.integration.training import (
    agreement,
    conditional_updates,
    gradient_sources,
    markers,
)
from amp.loss_scaling import finite_checks, gradients, update

_PLACING = gradients.GradientPlacement(mark=markers.attribute_scope)


@conversion.exempt
def apply_if_finite(
    apply: Callable[[], Any], grads: Sequence[Any], variables: Sequence[Any]
) -> tf.Tensor:
    """Runs an update of your own, unless a gradient that it uses overflowed.

    As optimizers of Keras and TensorFlow do by themselves in a scope. Also left out is
    an update with a gradient that is not finite now, whatever made it so. Works eagerly
    and in a `tf.function`, in a session graph, and in the replicas of a strategy, which
    all have to call it and decide together.

    Args:
      apply: the whole update, called without arguments. In a graph it is a branch, so
        variables that it needs have to exist already. In a session graph it returns
        what is to run: operations, tensors or assigned variables.
      grads: those that the update uses, unscaled: a structure of tensors,
        IndexedSlices, variables that gradients were summed in, arrays, and None.
      variables: those that it changes.

    Returns:
      Whether the update ran, bool, shape (). In a session graph this tensor is what to
      run.

    Raises:
      LossScaleError: no variables, nothing to run, or replicas that cannot agree here.
    """
    install()
    flat = [finite_checks.as_gradient(each) for each in tf.nest.flatten(grads)]
    apply = _converted(apply)
    sources = gradient_sources.given(variables, "apply_if_finite(..., variables)")
    if agreement.under_way():  # a part of another update, which decides
        apply()
        return tf.constant(True)
    _require_agreement()
    strategy = tf.distribute.get_strategy()
    concerns = conditional_updates.asked(strategy, flat, sources) or []
    apply = conditional_updates.told(_grouped(apply), flat, sources, concerns)
    ready = [g for g in map(finite_checks.values_of, flat) if g is not None]
    with tf.control_dependencies([] if tf.executing_eagerly() else ready):
        finite = finite_checks.all_of(finite_checks.finite_each(flat, _PLACING.beside))
        together = agreement.together()
        ran: tf.Tensor = update.unless_overflow(
            concerns, conditional_updates.branch(apply), together, finite
        )
    return ran


def _converted(apply: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the user's update in the form in which the caller would call it."""

    def call() -> Any:
        return apply()

    made: Callable[[], Any]
    made = tf.__internal__.autograph.tf_convert(call, conversion.callers())
    return made


def _grouped(apply: Callable[[], Any]) -> Callable[[], Any]:
    """Returns an update that in a session graph gives one operation."""
    if tf.executing_eagerly() or tf.inside_function():
        return apply

    def grouped() -> tf.Operation:
        made = [each for each in tf.nest.flatten(apply()) if each is not None]
        if made:
            return tf.group(*made)
        raise LossScaleError(
            "an update that returns nothing to run, in a session graph",
            where="apply_if_finite(apply, ...)",
            allowed="operations, tensors or assigned variables that `apply` returns",
            remedy="return them: `return [v.assign_sub(g) for ...]`",
        )

    return grouped


def _require_agreement() -> None:
    """Raises if this is one of several replicas, and they cannot agree here."""
    if tf.distribute.in_cross_replica_context():
        return
    if not replicas.cannot_agree() and replicas.can_meet():
        return
    raise LossScaleError(
        "an update in one of several replicas, which cannot agree here",
        where=f"apply_if_finite, under {type(tf.distribute.get_strategy()).__name__}",
        allowed="the function that strategy.run runs, under MirroredStrategy or "
        "MultiWorkerMirroredStrategy; not a tf.function, branch or loop inside it",
        remedy="call it there, or update outside of strategy.run",
    )
