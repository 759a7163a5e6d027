"""The hooks for optimizers of Keras 3, tf_keras and `tf.compat.v1`.

Each kind builds its variables, names its operation and returns what it promises in its
own way. What an update asks, and how it is skipped, is in `conditional_updates`.

An optimizer that exchanges gradients through queues (SyncReplicas) skips no update:
other processes would wait for this one. Gradients with an overflow are zeros then.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.integration import active, wrapping
from amp.integration.distributed import replicas
from amp.integration.training import agreement, conditional_updates
from amp.loss_scaling import state, update

_KERAS = "keras.src.optimizers.base_optimizer"
_TRAIN_OP = "train_op"


def _keras_apply(original: wrapping.Function) -> wrapping.Function:
    return _keras(original, "BaseOptimizer.apply", _build)


def _keras_multi_apply(original: wrapping.Function) -> wrapping.Function:
    """Its optimizers are a part of its update, and decide nothing by themselves."""

    def build(optimizer: Any, variables: Sequence[Any]) -> None:
        optimizer.build(variables)
        optimizer.built = True

    return _keras(original, "MultiOptimizer.apply", build)


def _keras(
    original: wrapping.Function, key: str, build: Callable[[Any, Sequence[Any]], None]
) -> wrapping.Function:
    """Makes the hook of an optimizer's `apply`.

    Args:
      original: the function hooked.
      key: of its row.
      build: takes an optimizer and its variables, and builds it as `original` would.
    """
    arguments = wrapping.reader(key, original)

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not conditional_updates.answers():
            return original(self, *args, **kwargs)
        given = arguments(self, *args, **kwargs)
        variables = given.get("trainable_variables")
        if variables is not None:
            variables = list(variables)
            given = given.replaced("trainable_variables", variables)
        grads = list(given.get("grads"))
        call: Callable[[], Any]
        call = functools.partial(given.replaced("grads", grads).call, original)
        updated = variables or getattr(self, "_trainable_variables", ())
        concerns = conditional_updates.asked(self, grads, updated)
        call = conditional_updates.told(call, grads, updated, concerns)
        if concerns is None:
            return conditional_updates.run_always(call)
        if variables and not self.built:
            build(self, variables)
        conditional_updates.unless_overflow(self, concerns, call)
        return None

    return apply


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds a Keras optimizer in the scope in which its `apply` would.

    So its variables get the same paths. They have to exist before the conditional
    update is built, because variables cannot be made in a branch.
    """
    base: Any = sys.modules[_KERAS]
    with base.backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of optimizer whose `apply_gradients` takes (gradient, variable) pairs.

    Attributes:
      key: of the row of its `apply_gradients` in `integration.hooks`.
      make: takes an optimizer and pairs, and makes its slots as `apply_gradients` does.
      name: takes an optimizer, returns the default name of its training operation.
      result: takes an optimizer and its training operation, None when eager, and
        returns what its `apply_gradients` promises.
    """

    key: str
    make: Callable[[Any, list[Any]], None]
    name: Callable[[Any], str]
    result: Callable[[Any, Any], Any]

    def decorate(self, original: wrapping.Function) -> wrapping.Function:
        """Makes the hook."""
        arguments = wrapping.reader(self.key, original)

        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not conditional_updates.answers():
                return original(optimizer, *args, **kwargs)
            given = arguments(optimizer, *args, **kwargs)
            pairs = [tuple(pair) for pair in given.get("grads_and_vars")]
            grads, variables = [p[0] for p in pairs], [p[1] for p in pairs]
            given = given.replaced("grads_and_vars", pairs)
            call: Callable[[], Any] = functools.partial(given.call, original)
            concerns = conditional_updates.asked(optimizer, grads, variables)
            call = conditional_updates.told(call, grads, variables, concerns)
            if concerns is None:
                return conditional_updates.run_always(call)
            if not replicas.merges():  # otherwise they are made where replicas meet
                self.make(optimizer, pairs)
            name = given.get("name") or self.name(optimizer)
            build = functools.partial(
                conditional_updates.unless_overflow, optimizer, concerns, call
            )
            operation = _as_operation(grads, name, concerns, build)
            return self.result(optimizer, operation)

        return apply


def _make_slots(optimizer: Any, pairs: list[Any]) -> None:
    with tf.init_scope():
        optimizer._create_slots([v for g, v in pairs if g is not None])


def _build_tf_keras(optimizer: Any, pairs: list[Any]) -> None:
    with tf.name_scope(optimizer.name or "optimizer"), tf.init_scope():
        optimizer.build([v for _, v in pairs])


def _build_legacy(optimizer: Any, pairs: list[Any]) -> None:
    with tf.name_scope(optimizer._name), tf.init_scope():
        optimizer._create_all_weights([v for g, v in pairs if g is not None])


def _iterations(optimizer: Any, operation: Any) -> Any:
    """How many updates there were: in a graph as a tensor, read after this one."""
    if operation is None:
        return optimizer.iterations
    with tf.control_dependencies([operation]):
        return optimizer.iterations.read_value()


def _operation_or_iterations(optimizer: Any, operation: Any) -> Any:
    return optimizer.iterations if operation is None else operation


def _as_operation(
    grads: Sequence[Any],
    name: str,
    concerns: Sequence[update.Concern],
    build: Callable[[], Any],
) -> Any:
    """Builds the conditional update as one training operation.

    Args:
      grads: the gradients of the update.
      name: of the operation.
      concerns: as of `update.unless_overflow`.
      build: builds the update, and returns whether it ran.

    Returns:
      The operation; None when eager.
    """
    if tf.executing_eagerly():
        build()
        return None
    collection = tf.compat.v1.get_collection_ref(_TRAIN_OP)
    before = list(collection)
    # In a session graph only these make the flag be read after the gradients are taken.
    # They would be computed even where they are fed.
    unknown = any(concern.calls is None for concern in concerns)
    values = [
        g
        for g in map(conditional_updates.values_of, grads)
        if isinstance(g, (tf.Tensor, tf.Variable))
    ]
    taken = values if unknown else []
    with tf.control_dependencies(taken):
        ran = build()
    operation = tf.group(ran, name=name)
    collection[:] = [*before, operation]
    return operation


def _averages_apply(original: wrapping.Function) -> wrapping.Function:
    """If the last update of variables was skipped, their averages do not change."""
    arguments = wrapping.reader("ExponentialMovingAverage.apply", original)

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, *args, **kwargs)
        if not conditional_updates.answers():
            return call()
        listed = arguments(self, *args, **kwargs).get("var_list")
        given = tf.compat.v1.trainable_variables() if listed is None else listed
        averaged = [v for v in given if isinstance(v, tf.Variable)]
        concerns = state.serving(averaged)
        session = not (tf.executing_eagerly() or tf.inside_function())
        # A function may not make the averages in a branch; the first call makes them.
        made = session or all(self.average(v) is not None for v in averaged)
        out = replicas.cannot_agree() or len(averaged) < len(given)
        if out or not concerns or not made:
            return conditional_updates.run_always(call)
        ran = update.unless_left_out(
            concerns, conditional_updates.branch(call), agreement.together()
        )
        return tf.group(ran, name=self.name)

    return apply


def _left_alone(original: wrapping.Function) -> wrapping.Function:
    def apply(*args: Any, **kwargs: Any) -> Any:
        if active.active_loss_scale() is None and not state.any_scaler():
            return original(*args, **kwargs)
        return conditional_updates.kept(functools.partial(original, *args, **kwargs))()

    return apply


_SESSION = _Kind(
    "Optimizer.apply_gradients",
    _make_slots,
    lambda o: o.get_name(),
    lambda o, operation: operation,
)
_TF_KERAS = _Kind(
    "_BaseOptimizer.apply_gradients",
    _build_tf_keras,
    lambda o: o.name or "optimizer",
    _iterations,
)
_LEGACY = _Kind(
    "OptimizerV2.apply_gradients",
    _build_legacy,
    lambda o: o._name,
    _operation_or_iterations,
)

HOOKS: dict[str, wrapping.Decorate] = {
    _SESSION.key: _SESSION.decorate,
    "SyncReplicasOptimizer.apply_gradients": _left_alone,
    "ExponentialMovingAverage.apply": _averages_apply,
}
KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "BaseOptimizer.apply": _keras_apply,
}
KERAS_MULTI_HOOKS: dict[str, wrapping.Decorate] = {
    "MultiOptimizer.apply": _keras_multi_apply,
}
TF_KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    each.key: each.decorate for each in (_TF_KERAS, _LEGACY)
}
