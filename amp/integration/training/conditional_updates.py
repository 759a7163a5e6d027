"""What an optimizer's update asks of scalers, and the form in which it can be skipped.

If a gradient overflowed, the whole update is skipped, by `loss_scaling.update`, which
decides that. Replicas of a strategy agree first, so that all skip or none. Used by
`optimizer_hooks` and by `apply_if_finite`; what an optimizer returns is not known here.

An update is not skipped if its gradients were combined with those of other processes
(`distributed.collectives`), which would wait for this one. Gradients with an overflow
are zeros then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration import active, fallback
from amp.integration.distributed import collectives, replicas
from amp.integration.training import agreement, gradient_sources, markers
from amp.integration.training.left_values import LeftValues, may_keep
from amp.loss_scaling import provenance, state, traced_updates, update
from amp.loss_scaling.node_names import apart


def answers() -> bool:
    """Whether to look for scalers that may skip the update which starts now.

    Not if it is part of another update, and not if there can be no scaler of its
    variables. A scaler may belong to the active scope or to an earlier one, or may be
    made later, while a trace of this update is still in use.
    """
    if agreement.under_way():
        return False
    scope = active.active_loss_scale() is not None
    return scope or state.any_scaler() or bool(tf.inside_function())


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


def unless_overflow(
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


def branch(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns an update in the form that `update.unless_overflow` takes."""
    return _own_randomness(kept(replicas.alone(call)))


def run_always(call: Callable[[], Any]) -> Any:
    """Runs an update that cannot be skipped; in a scope its nodes are marked KEEP."""
    return call() if active.active_loss_scale() is None else kept(call)()


def kept(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns an update whose nodes are marked KEEP, and that no hook looks into."""

    def marked() -> Any:
        with agreement.UPDATES.inside(), markers.optimizer_scope():
            return call()

    return marked


def values_of(grad: Any) -> Any:
    """The values of a gradient, which may be sparse."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


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
    values = [value for value in map(values_of, grads) if value is not None]
    if not all(isinstance(value, tf.Tensor) for value in values):
        return True
    kinds = {facts(v.op.type).kind for v in values if tf.is_symbolic_tensor(v)}
    return not kinds.isdisjoint((Kind.PLACEHOLDER, Kind.READ_VARIABLE))


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
