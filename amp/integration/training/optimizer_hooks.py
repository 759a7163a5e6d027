"""Where optimizers update: Keras 3 and `tf.compat.v1`, skipped as a whole on overflow.

Knows how these optimizers are built and called; the decision itself lives in
`amp.loss_scaling.update`.

Replicas of a strategy agree first, and then skip together. For gradients that were
combined with those of other processes, and for optimizers that wrap others and hold
queues (SyncReplicas), nothing is skipped: gradients are exact zeros, so nothing
deadlocks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.errors import TensorFlowError
from amp.graph_rewrite.graph import ir
from amp.integration.distributed import collectives, replicas, wire
from amp.integration.training import gradient_sources, markers
from amp.loss_scaling import state, update
from amp.loss_scaling.scale import NoLossScale

_KERAS = "keras.src.optimizers.base_optimizer"
_KERAS_SCALER = "keras.src.optimizers.loss_scale_optimizer"
_KERAS_REDUCES = "keras.src.backend.tensorflow.optimizer"
_TRAIN_OP = "train_op"


class _Depth(threading.local):
    """How many updates this thread is inside of."""

    value = 0


_DEPTH = _Depth()


def install() -> None:
    """Decorates the optimizers, once per process; Keras' when Keras is there.

    Raises:
      TensorFlowError: a private name is missing or has other parameters.
    """
    install_keras()
    train = tf.compat.v1.train
    if getattr(train.Optimizer.apply_gradients, "_amp_original", None) is not None:
        return
    _check(train.Optimizer, "_create_slots", ("var_list",))
    _check(train.Optimizer, "apply_gradients", ("grads_and_vars", "name"))
    _replace(train.Optimizer, "apply_gradients", _session_apply)
    _replace(train.SyncReplicasOptimizer, "apply_gradients", _undecorated)
    averages = tf.train.ExponentialMovingAverage
    _check(averages, "apply", ("var_list",))
    _check(averages, "average", ("var",))
    _replace(averages, "apply", _averages_apply)


def install_keras() -> None:
    """Decorates the Keras 3 optimizers if Keras is imported and they are not yet.

    Raises:
      TensorFlowError: a private name is missing or has other parameters.
    """
    base = getattr(sys.modules.get(_KERAS), "BaseOptimizer", None)
    if base is None or getattr(base.apply, "_amp_original", None) is not None:
        return
    backend = getattr(sys.modules[_KERAS], "backend", None)
    _check(backend, "name_scope", ("name",))
    _check(base, "build", ("variables",))
    _check(base, "apply", ("grads", "trainable_variables"))
    _replace(base, "apply", _keras_apply)
    if _KERAS_REDUCES in sys.modules:
        reduces = getattr(sys.modules[_KERAS_REDUCES], "TFOptimizer", None)
        _check(reduces, "_all_reduce_sum_gradients", ("grads_and_vars",))
        _replace(reduces, "_all_reduce_sum_gradients", wire.carried)
    scaler = getattr(sys.modules.get(_KERAS_SCALER), "LossScaleOptimizer", None)
    if scaler is not None:
        _check(scaler, "apply", ("grads", "trainable_variables"))
        _check(scaler, "scale_loss", ("loss",))
        _replace(scaler, "apply", _scaler_apply)
        _replace(scaler, "scale_loss", _scaler_scale_loss)


def _keras_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _answers():
            return original(self, grads, trainable_variables)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if trainable_variables and not self.built:
            # As `apply` builds it, so that its variables get the same paths.
            with sys.modules[_KERAS].backend.name_scope(self.name, caller=self):
                self.build(trainable_variables)
            self.built = True
        grads = list(grads)
        updated = trainable_variables or getattr(self, "_trainable_variables", ())
        call = functools.partial(original, self, grads, trainable_variables)
        concerns = _concerns(grads, updated)
        if not concerns:
            return _run(call)
        update.unless_overflow(concerns, _branch(call), _replicas())
        return None

    return apply


def _scaler_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' own loss scaling rests while ours is at work: two would hide overflows."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _scaling():
            return original(self, grads, trainable_variables)
        if not self.built:
            self.build(trainable_variables)
            self.built = True
        return self.inner_optimizer.apply(grads, trainable_variables)

    return apply


def _scaler_scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss(self: Any, loss: Any) -> Any:
        return loss if _scaling() else original(self, loss)

    return scale_loss


def _scaling() -> bool:
    """Whether gradients taken now are scaled."""
    from amp.integration import activation

    rule = activation.active_loss_scale()
    return rule is not None and not isinstance(rule, NoLossScale)


def _session_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if not _answers():
            return original(self, grads_and_vars, *args, **kwargs)
        pairs = [tuple(pair) for pair in grads_and_vars]
        grads, variables = [p[0] for p in pairs], [p[1] for p in pairs]
        call = functools.partial(original, self, pairs, *args, **kwargs)
        concerns = _concerns(grads, variables)
        if not concerns:
            return _run(call)
        if not replicas.merges():  # otherwise they are made where replicas meet
            with tf.init_scope():
                self._create_slots([v for g, v in pairs if g is not None])
        bound = inspect.signature(original).bind(self, pairs, *args, **kwargs)
        name = bound.arguments.get("name") or self.get_name()
        return _as_operation(grads, name, concerns, _branch(call))

    return apply


def _as_operation(
    grads: Sequence[Any],
    name: str,
    concerns: Sequence[update.Concern],
    call: Callable[[], Any],
) -> Any:
    """Returns the conditional update as the one training operation of its graph."""
    if tf.executing_eagerly():
        update.unless_overflow(concerns, call, _replicas())
        return None
    collection = tf.compat.v1.get_collection_ref(_TRAIN_OP)
    before = list(collection)
    # Without automatic control dependencies only these order flag and gradient.
    with tf.control_dependencies([g for g in map(_values, grads) if g is not None]):
        ran = update.unless_overflow(concerns, call, _replicas())
    operation = tf.group(ran, name=name)
    collection[:] = [*before, operation]
    return operation


def _averages_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Moving averages of variables stay where the variables' update was left out."""

    def apply(self: Any, var_list: Any = None) -> Any:
        call = functools.partial(original, self, var_list)
        if not _answers():
            return call()
        given = tf.compat.v1.trainable_variables() if var_list is None else var_list
        averaged = [v for v in given if isinstance(v, tf.Variable)]
        concerns = state.serving(averaged)
        session = not (tf.executing_eagerly() or tf.inside_function())
        # A function may not make the averages in a branch; the first call makes them.
        made = session or all(self.average(v) is not None for v in averaged)
        out = replicas.cannot_agree() or len(averaged) < len(given)
        if out or not concerns or not made:
            return _run(call)
        ran = update.unless_left_out(concerns, _branch(call), _replicas())
        return tf.group(ran, name=self.name)

    return apply


def _undecorated(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        return _kept(functools.partial(original, *args, **kwargs))()

    return apply


def _answers() -> bool:
    """Whether the update that starts now is the outermost one in an active scope."""
    from amp.integration import activation

    return not _DEPTH.value and activation.active_loss_scale() is not None


def _concerns(grads: Sequence[Any], variables: Sequence[Any]) -> list[update.Concern]:
    if replicas.cannot_agree():
        return []
    pairs = zip(grads, variables, strict=False)
    resolved = (gradient_sources.variable(v) for grad, v in pairs if grad is not None)
    concerns = state.serving([v for v in resolved if v is not None])
    # What replicas reduce among themselves they have agreed on.
    elsewhere = () if replicas.several() else grads
    return [] if concerns and collectives.combined(elsewhere) else concerns


def _replicas() -> update.Replicas:
    if not replicas.merges():
        return update.Replicas(agree=replicas.agree)
    return update.Replicas(replicas.cond, replicas.agree)


def _branch(call: Callable[[], Any]) -> Callable[[], Any]:
    return _kept(replicas.alone(call))


def _run(call: Callable[[], Any]) -> Any:
    """Runs an update that nothing can skip."""
    if not replicas.merges() or not replicas.can_meet():
        return _kept(call)()

    def replica() -> Any:
        with _inside():
            return call()

    # Entered by each of them, a scope of the graph that they share would stay.
    return replicas.together(replica, lambda: markers.attribute_scope(ir.KEEP))


def _kept(call: Callable[[], Any]) -> Callable[[], Any]:
    def kept() -> Any:
        with _inside(), markers.attribute_scope(ir.KEEP):
            return call()

    return kept


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _replace(owner: Any, name: str, decorate: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    # AutoGraph converts what it calls outside TensorFlow, and would convert this too.
    wrapper = tf.autograph.experimental.do_not_convert(
        functools.wraps(original)(decorate(original))
    )
    wrapper._amp_original = original
    setattr(owner, name, wrapper)


def _check(owner: Any, name: str, arguments: tuple[str, ...]) -> None:
    found = getattr(owner, name, None)
    known = set(inspect.signature(found).parameters) if callable(found) else set()
    missing = sorted(set(arguments) - known)
    if found is None or missing:
        raise TensorFlowError(
            f"{owner} has no {name}({', '.join(arguments)})",
            where=f"amp.integration.training.optimizer_hooks, hook of {name}",
            allowed="TensorFlow 2.18 to 2.21, Keras 3",
            remedy="install a supported version, or switch the plugin off",
        )
