"""The hooks for optimizers of Keras 3, tf_keras and `tf.compat.v1`.

If a gradient overflowed, the whole update is skipped, by `loss_scaling.update`, which
decides that. Replicas of a strategy agree first, so that all skip or none.

An update is not skipped if its gradients were combined with those of other processes
(`distributed.collectives`), or if its optimizer exchanges gradients through queues
(SyncReplicas): other processes would wait for this one. Gradients with an overflow are
zeros then.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration import active, fallback, wrapping
from amp.integration.distributed import collectives, replicas
from amp.integration.training import agreement, gradient_sources, markers
from amp.integration.training.left_values import LeftValues, may_keep
from amp.loss_scaling import provenance, state, traced_updates, update
from amp.loss_scaling.node_names import apart

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
        if not _answers():
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
        concerns = asked(self, grads, updated)
        call = told(call, grads, updated, concerns)
        if concerns is None:
            return _run(call)
        if variables and not self.built:
            build(self, variables)
        _unless_overflow(self, concerns, call)
        return None

    return apply


def _unless_overflow(
    optimizer: Any, concerns: Sequence[update.Concern], call: Callable[[], Any]
) -> Any:
    """Has an optimizer update unless a gradient overflowed.

    Args:
      optimizer: what it keeps of the update can be read outside, but not of one in
        which replicas meet.
      concerns: as of `update.unless_overflow`.
      call: the update itself.

    Returns:
      Whether it ran, bool, shape ().
    """
    together = agreement.together()
    alone = together is update.ONE and not tf.executing_eagerly()
    # Those of a MultiOptimizer keep what they compute too.
    inner: list[Any] = fallback.attempt_quietly(
        lambda: list(getattr(optimizer, "optimizers", ())), []
    )
    keepers = [one for one in (optimizer, *inner) if may_keep(one)] if alone else []
    left = LeftValues(keepers) if keepers else None
    with apart():
        return update.unless_overflow(concerns, branch(call), together, None, left)


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
            if not _answers():
                return original(optimizer, *args, **kwargs)
            given = arguments(optimizer, *args, **kwargs)
            pairs = [tuple(pair) for pair in given.get("grads_and_vars")]
            grads, variables = [p[0] for p in pairs], [p[1] for p in pairs]
            given = given.replaced("grads_and_vars", pairs)
            call: Callable[[], Any] = functools.partial(given.call, original)
            concerns = asked(optimizer, grads, variables)
            call = told(call, grads, variables, concerns)
            if concerns is None:
                return _run(call)
            if not replicas.merges():  # otherwise they are made where replicas meet
                self.make(optimizer, pairs)
            name = given.get("name") or self.name(optimizer)
            build = functools.partial(_unless_overflow, optimizer, concerns, call)
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
    values = [g for g in map(_values, grads) if isinstance(g, (tf.Tensor, tf.Variable))]
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
        if not _answers():
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
            return _run(call)
        ran = update.unless_left_out(concerns, branch(call), agreement.together())
        return tf.group(ran, name=self.name)

    return apply


def _left_alone(original: wrapping.Function) -> wrapping.Function:
    def apply(*args: Any, **kwargs: Any) -> Any:
        if active.active_loss_scale() is None and not state.any_scaler():
            return original(*args, **kwargs)
        return _kept(functools.partial(original, *args, **kwargs))()

    return apply


def asked(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]
) -> list[update.Concern] | None:
    """The concerns of an update; None if it cannot be skipped.

    They may be empty if this replica has none, but others may have.

    Args:
      optimizer: workers compare their rules once for each.
      grads: the gradients of the update.
      variables: the variables that it updates.
    """
    concerns = _concerns(grads, variables)
    meet = replicas.one_process()
    if agreement.agrees() and not meet:  # other workers may have concerns
        agreement.same_rule(optimizer)
        return concerns
    # What concerns one of them, all have to answer.
    some = meet and agreement.can_agree() and any(replicas.gather(bool(concerns)))
    return concerns if some else concerns or None


def told(
    call: Callable[[], Any],
    grads: Sequence[Any],
    variables: Sequence[Any],
    concerns: Sequence[update.Concern] | None,
) -> Callable[[], Any]:
    """Returns an update that also tells scalers which are not asked that it ran.

    Args:
      call: the update.
      grads, variables: as of `asked`.
      concerns: what `asked` returned.
    """
    if replicas.cannot_agree():
        return call
    updated = _updated(grads, variables)
    part = fallback.Part("averages may stay as they are", active.is_strict())
    return fallback.attempt(
        part, lambda: update.told_to_all(call, updated, concerns or ()), lambda: call
    )


def _answers() -> bool:
    """Whether to look for scalers that may skip the update which starts now.

    Not if it is part of another update, and not if there can be no scaler of its
    variables. A scaler may belong to the active scope or to an earlier one, or may be
    made later, while a trace of this update is still in use.
    """
    if agreement.under_way():
        return False
    scope = active.active_loss_scale() is not None
    return scope or state.any_scaler() or bool(tf.inside_function())


def _concerns(grads: Sequence[Any], variables: Sequence[Any]) -> list[update.Concern]:
    """The scalers whose overflow skips an update; none if finding them fails."""
    if replicas.cannot_agree():
        return []
    says = "an optimizer updates as it was; gradients with an overflow are zeros"
    part = fallback.Part(says, active.is_strict())
    return fallback.attempt(part, lambda: _served(grads, variables), list)


def _updated(grads: Sequence[Any], variables: Sequence[Any]) -> list[tf.Variable]:
    """The variables of TensorFlow that an update changes."""
    pairs = zip(grads, variables, strict=False)
    resolved = (gradient_sources.variable(v) for grad, v in pairs if grad is not None)
    return [v for v in resolved if v is not None]


def _served(grads: Sequence[Any], variables: Sequence[Any]) -> list[update.Concern]:
    updated = _updated(grads, variables)
    calls = provenance.calls(grads, updated)
    concerns = update.concerns(updated, calls, grads)
    if calls is None and tf.inside_function() and _may_grow(grads):
        traced_updates.note(updated)
    # What replicas reduce among themselves they have agreed on.
    elsewhere = () if replicas.several() else grads
    return [] if concerns and collectives.combined(elsewhere) else concerns


def _may_grow(grads: Sequence[Any]) -> bool:
    """Whether an update that is traced now may get scaled gradients later.

    In a scope it may. Outside, gradients that the function takes itself are not scaled,
    but those that it gets as arguments or reads from variables may be.
    """
    if active.active_loss_scale() is not None:
        return True
    values = [value for value in map(_values, grads) if value is not None]
    if not all(isinstance(value, tf.Tensor) for value in values):
        return True
    kinds = {facts(v.op.type).kind for v in values if tf.is_symbolic_tensor(v)}
    return not kinds.isdisjoint((Kind.PLACEHOLDER, Kind.READ_VARIABLE))


def branch(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns an update in the form that `update.unless_overflow` takes."""
    return _own_randomness(_kept(replicas.alone(call)))


def _own_randomness(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns an update whose random operations have seeds that the step's have not.

    TensorFlow counts them from the beginning of each graph, and a branch is one.
    """
    outer = tf.compat.v1.get_default_graph()

    def seeded() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph is not outer and graph.seed is not None:
            built = len(outer.get_operations())
            tf.compat.v1.set_random_seed((graph.seed + built) % 2**31)
        return call()

    return seeded


def _run(call: Callable[[], Any]) -> Any:
    """Runs an update that cannot be skipped; in a scope its nodes are marked KEEP."""
    return call() if active.active_loss_scale() is None else _kept(call)()


def _kept(call: Callable[[], Any]) -> Callable[[], Any]:
    def kept() -> Any:
        with agreement.UPDATES.inside(), markers.optimizer_scope():
            return call()

    return kept


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


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
