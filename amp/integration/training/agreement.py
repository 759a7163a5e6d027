"""One update, or one sum, of several replicas: when they agree, and how.

Knows strategies, the active rule and the depth of updates; no optimizer and no hook.
The decision itself lives in `amp.loss_scaling.update`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from amp.errors import PolicyError
from amp.integration import active, fallback
from amp.integration.distributed import replicas, workers
from amp.integration.process import PROCESS
from amp.loss_scaling import update
from amp.loss_scaling.scale import NoLossScale


class _Depth(threading.local):
    """How many updates this thread is inside of."""

    value = 0


_DEPTH = _Depth()


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """What is called inside is part of one update, or of one sum over replicas."""
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1


def under_way() -> bool:
    """Whether this thread is inside of an update."""
    return _DEPTH.value > 0


def agrees() -> bool:
    """Whether replicas are to agree on what starts now, whatever concerns this one.

    Every update of a replica is one, and every sum over replicas that is not part of
    one: all replicas get there, though some may have no gradient for it.
    """
    rule = active.active_loss_scale()
    if _DEPTH.value or rule is None or isinstance(rule, NoLossScale):
        return False
    return can_agree()


def can_agree() -> bool:
    """Whether what is built now is one of several replicas', which can agree here."""
    can = replicas.several() and replicas.can_meet()
    return can and not replicas.cannot_agree()


def same_rule(owner: Any) -> None:
    """Returns once all workers agree as this one does, asked once for each owner.

    Raises:
      PolicyError: another worker has another rule, or none.
    """
    says = "it is not known whether all workers have the same loss scale"
    part = fallback.Part(says, active.is_strict(), raises=(PolicyError,))
    rule = repr(active.active_loss_scale())
    told = PROCESS.agreed.setdefault(owner, set())
    if rule not in told:
        fallback.attempt(part, lambda: workers.same(rule), lambda: None)
        told.add(rule)


def together() -> update.Replicas:
    """How the replicas of which this is one decide."""
    if not replicas.several():
        return update.ONE
    if not replicas.merges():
        return update.Replicas(agree=_agree)
    return update.Replicas(replicas.cond, _agree, replicas.gather)


def _agree(finite: tf.Tensor) -> tf.Tensor:
    with inside():
        return replicas.agree(finite)
