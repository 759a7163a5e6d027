"""The hook by which Keras 3 optimizers sum gradients over hosts in bfloat16.

For policies with `wire=True`. Whether a gradient gains by it is decided in
`cost.all_reduce`. A sum that the program makes itself is not changed.

Gradients are unscaled by then and need float32's range, so they are sent as bfloat16,
also if the policy's type is float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp import messages
from amp.graph_rewrite.cost import all_reduce
from amp.integration import active, wrapping
from amp.integration.distributed import replicas, workers
from amp.integration.process import PROCESS


def _carried(original: wrapping.Function) -> wrapping.Function:
    """Decorates the method by which a Keras optimizer sums its gradients.

    Dense float32 gradients that gain by it are summed in bfloat16, the others in
    float32. Each of the two groups is one call, because TensorFlow joins the gradients
    of a call.
    """

    arguments = wrapping.reader("TFOptimizer._all_reduce_sum_gradients", original)

    def aggregate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _wanted():
            return original(self, *args, **kwargs)
        given = arguments(self, *args, **kwargs)
        pairs = list(given.get("grads_and_vars"))

        def reduce(some: list[Any]) -> list[Any]:
            return list(given.replaced("grads_and_vars", some).call(original))

        chosen = _chosen(pairs)
        if not chosen:
            return reduce(pairs)
        if self not in PROCESS.carried:
            workers.same("gradients in bfloat16 on the wire")
            PROCESS.carried.add(self)
        low, rest = [], []
        for i, (grad, variable) in enumerate(pairs):
            if i in chosen:
                low.append((tf.cast(grad, tf.bfloat16), variable))
            else:
                rest.append((grad, variable))
        sums = [(tf.cast(g, tf.float32), v) for g, v in reduce(low)]
        if any(grad is not None for grad, _ in rest):
            rest = reduce(rest)
        low_sums, others = iter(sums), iter(rest)
        return [next(low_sums if i in chosen else others) for i in range(len(pairs))]

    return aggregate


def _wanted() -> bool:
    """Whether the policy asks for 16 bits on the wire, and the strategy allows them."""
    now = active.active()
    policy = None if now is None else now.settled.policy
    strategy = tf.distribute.get_strategy()
    hosts = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if policy is None or not policy.wire or not hosts or not replicas.several():
        return False
    devices = strategy.extended.worker_devices
    if any(":GPU:" in device.upper() for device in devices):
        messages.log_once(
            "gradients stay float32 on the wire: bfloat16 between GPUs is not known to "
            "work"
        )
        return False
    return True


def _chosen(pairs: Sequence[tuple[Any, Any]]) -> frozenset[int]:
    """The positions of the gradients to send in 16 bits; the same in all workers."""
    count = tf.distribute.get_strategy().num_replicas_in_sync
    return frozenset(
        i
        for i, (grad, variable) in enumerate(pairs)
        if isinstance(grad, tf.Tensor)
        and grad.dtype == tf.float32
        and all_reduce.gains(variable.shape.num_elements() or 0, count)
    )


KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "TFOptimizer._all_reduce_sum_gradients": _carried,
}
