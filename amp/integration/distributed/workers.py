"""Checks that all workers of a MultiWorkerMirroredStrategy have the same settings.

Called before replicas agree on an overflow (`training.agreement`), before a scaler is
made and before gradients are sent in 16 bits (`wire`). Workers compare their settings
through TensorFlow's coordination service and never by a collective, which would wait
for ever for a worker that does not use this package.
"""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp import messages
from amp.errors import PolicyError
from amp.integration.process import PROCESS

Task: TypeAlias = tuple[str, int]

PATIENCE = 600.0  # seconds to wait for a worker, which may have more to prepare
_SOON = 30.0  # seconds after which the log says whom a job is waiting for


_WAITING = (
    "waiting for %s %d, which has not got here after %.0f s. Likely it runs without "
    "this package or with another policy (AMP_ENABLE and the other AMP_* variables are "
    "to be the same in all workers), still loads data or compiles, or has ended: see "
    "its log"
)


def same(rule: str) -> None:
    """Returns when every worker of the strategy has called it with the same `rule`.

    The n-th call in one worker is compared with the n-th in the others. With any other
    strategy, or none, it returns at once.

    Args:
      rule: the settings to compare, as text.

    Raises:
      PolicyError: another worker has another rule, or none.
    """
    own, others = _tasks()
    if not others:
        return
    number, context = next(PROCESS.agreement_numbers), context_lib.context()
    said = f"tf-amp {_release()}, {rule}"
    context.delete_config_key_value(_key(number, own))  # left from before a restart
    context.set_config_key_value(_key(number, own), said)
    for task in others:
        _compare(task, said, _told(_key(number, task), task))


def _release() -> str:
    try:
        return importlib.metadata.version("tf-amp")
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


def _tasks() -> tuple[Task, list[Task]]:
    """Returns this task and the others that take steps with it."""
    strategy = tf.distribute.get_strategy()
    resolver = getattr(strategy, "cluster_resolver", None)
    multi = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not multi or resolver is None or not _coordinated():
        return ("worker", 0), []
    spec, own = resolver.cluster_spec(), (resolver.task_type, resolver.task_id)
    jobs = [job for job in ("chief", "worker") if job in spec.jobs]
    tasks = [(job, index) for job in jobs for index in spec.task_indices(job)]
    return own, [task for task in tasks if task != own]


def _coordinated() -> bool:
    return getattr(context_lib.context(), "coordination_service", None) is not None


def _key(number: int, task: Task) -> str:
    return f"amp/loss_scale/{number}/{task[0]}/{task[1]}"


def _told(key: str, task: Task) -> str | None:
    """What another worker wrote under a key; None if nothing for `PATIENCE` seconds."""
    begun, wait = time.monotonic(), min(_SOON, PATIENCE)
    while wait > 0:
        try:
            context: Any = context_lib.context()
            return str(context.get_config_key_value(key, int(1000 * wait)))
        except tf.errors.DeadlineExceededError:
            waited = time.monotonic() - begun
            messages.log(_WAITING, *task, waited)
            wait = min(_SOON, PATIENCE - waited)
    return None


def _compare(task: Task, said: str, told: str | None) -> None:
    if told == said:
        return
    where = f"{task[0]} {task[1]}"
    silent = f"no loss scale, nor 16 bits on the wire, for {PATIENCE:.0f} seconds"
    raise PolicyError(
        f"workers that take steps together differ: {told or silent}",
        where=f"{where} of MultiWorkerMirroredStrategy",
        allowed=f"{said}, as this worker has",
        remedy="switch on the same version with the same loss_scale and wire in all "
        "workers, or off in all; with loss_scale='none', wire=False they may differ",
    )
