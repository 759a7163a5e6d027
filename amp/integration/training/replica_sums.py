"""The hook for `ReplicaContext.all_reduce`, by which replicas sum gradients themselves.

A program that updates by hand sums gradients so. If a gradient overflowed in one
replica, the sum becomes zeros in all of them, so that none is updated by a part. Sums
that an optimizer makes are not changed here; `loss_scaling.update` skips its update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.integration import active, fallback, wrapping
from amp.integration.distributed import replicas
from amp.integration.training import agreement
from amp.loss_scaling import provenance, update


def _all_reduce(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("ReplicaContext.all_reduce", original)

    def all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not agreement.agrees():
            return original(self, *args, **kwargs)
        value = arguments(self, *args, **kwargs).get("value")
        calls = _calls(tf.nest.flatten(value))
        if replicas.one_process() and not any(replicas.gather(bool(calls))):
            return original(self, *args, **kwargs)
        with agreement.UPDATES.inside():
            agreement.same_rule(tf.distribute.get_strategy())
            scalers, finite = update.agree_now(calls, agreement.together())
            summed = original(self, *args, **kwargs)
        if any(scaler.settings.on_overflow == "nan" for scaler in scalers):
            return summed  # which is NaN, in all replicas
        results = [_zeroed(each, finite) for each in tf.nest.flatten(summed)]
        for scaler in scalers:
            provenance.note(provenance.Call(scaler, finite, moved=True), results)
        return tf.nest.pack_sequence_as(summed, results)

    return all_reduce


def _calls(values: Sequence[Any]) -> list[provenance.Call]:
    """The gradient calls from which a replica's values are computed, if known."""
    says = "a sum over replicas is as it was: of gradients with an overflow, a part"
    part = fallback.Part(says, active.is_strict())
    return fallback.attempt(part, lambda: provenance.calls(values, ()) or [], list)


def _zeroed(value: Any, finite: tf.Tensor) -> Any:
    """Returns a sum if `finite` is true, else zeros."""
    if isinstance(value, tf.IndexedSlices):
        values = _zeroed(value.values, finite)
        return tf.IndexedSlices(values, value.indices, value.dense_shape)
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return value
    return tf.where(finite, value, tf.zeros_like(value))


HOOKS: dict[str, wrapping.Decorate] = {
    "ReplicaContext.all_reduce": _all_reduce,
}
