"""When the replicas of a strategy have to agree on an overflow, and by which functions.

Used by `conditional_updates` for updates and by `replica_sums` for sums by hand.
Replicas *agree* by an all-reduce of their flags, so either all of them take part or
none: a replica that takes part alone waits for ever.

Here it is found out whether the code that is being built is at a point where all
replicas agree. No optimizer and no hook is here, and what follows from an overflow is
decided in `amp.loss_scaling.update`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amp.errors import PolicyError
from amp.integration import active, fallback
from amp.integration.distributed import replicas, workers
from amp.integration.nesting import Nesting
from amp.integration.process import PROCESS
from amp.loss_scaling import update
from amp.loss_scaling.scale import NoLossScale

# Updates, or sums over replicas, that this thread is inside of. Hooks that are called
# in one belong to the same update, and do nothing of their own.
UPDATES = Nesting()


def under_way() -> bool:
    """Whether this thread is inside of an update or a sum."""
    return bool(UPDATES)


def agrees() -> bool:
    """Whether replicas have to agree on the update or sum that starts now.

    Not if it is part of another update or sum. Otherwise all replicas get to this
    point, so they agree here even if this one has no scaled gradient for it.
    """
    rule = active.active_loss_scale()
    if UPDATES or rule is None or isinstance(rule, NoLossScale):
        return False
    return can_agree()


def can_agree() -> bool:
    """Whether there are several replicas, and they can agree where they are now."""
    can = replicas.several() and replicas.can_meet()
    return can and not replicas.cannot_agree()


def same_rule(owner: Any) -> None:
    """Returns when all workers are known to have the same loss-scale rule.

    Without that check, a worker that has no loss scaling would not take part when the
    others agree, and they would wait for ever.

    Args:
      owner: the optimizer or strategy; workers compare rules once for each.

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
    """How the replicas decide together: the argument of `update.unless_overflow`."""
    if not replicas.several():
        return update.ONE
    if not replicas.merges():
        return update.Replicas(agree=agree)
    return update.Replicas(replicas.cond, agree, replicas.gather)


def agree(finite: tf.Tensor) -> tf.Tensor:
    """`replicas.agree`, where the hook for sums over replicas has nothing to do."""
    with UPDATES.inside():
        return replicas.agree(finite)
