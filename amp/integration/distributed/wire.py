"""16 bits on the wire: what Keras 3 optimizers sum over the hosts of a strategy.

Knows how an optimizer reduces its gradients; whether that gains is
`cost.all_reduce`'s to say. A program's own all-reduce never comes by here.

Gradients are unscaled by then, so they are carried in bfloat16, which has float32's
range, whatever type the job computes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost import all_reduce
from amp.integration import active, hooks, messages
from amp.integration.distributed import replicas, workers
from amp.integration.process import PROCESS


def _carried(original: hooks.Function) -> hooks.Function:
    """Decorates the method by which a Keras optimizer sums its gradients.

    Dense float32 gradients that gain by it are summed in bfloat16, the others as ever:
    one all-reduce each, since TensorFlow joins what it reduces together.
    """

    arguments = hooks.reader("TFOptimizer._all_reduce_sum_gradients", original)

    def aggregate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _wanted():
            return original(self, *args, **kwargs)
        given = arguments(self, *args, **kwargs)
        pairs = list(given.get("grads_and_vars"))

        def reduce(some: list[Any]) -> list[Any]:
            return list(given.replaced("grads_and_vars", some).call(original))

        narrow = _narrow(pairs)
        if not narrow:
            return reduce(pairs)
        if self not in PROCESS.carried:
            workers.same("gradients in bfloat16 on the wire")
            PROCESS.carried.add(self)
        low, rest = [], []
        for i, (grad, variable) in enumerate(pairs):
            if i in narrow:
                low.append((tf.cast(grad, tf.bfloat16), variable))
            else:
                rest.append((grad, variable))
        sums = [(tf.cast(g, tf.float32), v) for g, v in reduce(low)]
        if any(grad is not None for grad, _ in rest):
            rest = reduce(rest)
        low_sums, others = iter(sums), iter(rest)
        return [next(low_sums if i in narrow else others) for i in range(len(pairs))]

    return aggregate


def _wanted() -> bool:
    """Whether what is built now is to be carried in 16 bits, and can be."""
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


def _narrow(pairs: Sequence[tuple[Any, Any]]) -> frozenset[int]:
    """The positions of the gradients to be carried in 16 bits, alike in all workers."""
    count = tf.distribute.get_strategy().num_replicas_in_sync
    return frozenset(
        i
        for i, (grad, variable) in enumerate(pairs)
        if isinstance(grad, tf.Tensor)
        and grad.dtype == tf.float32
        and all_reduce.gains(variable.shape.num_elements() or 0, count)
    )


KERAS_HOOKS: dict[str, hooks.Decorate] = {
    "TFOptimizer._all_reduce_sum_gradients": _carried,
}
