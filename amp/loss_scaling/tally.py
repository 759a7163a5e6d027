"""The tally of a scaler: which of its gradients were not finite, and how often.

`gradients` makes what a call adds, `Scaler` keeps the sum on the device, and `stalls`
and monitors read it. Nothing is decided by it, and no step waits for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def added(
    checks: Mapping[int, tf.Tensor], owners: Sequence[int | None], count: int
) -> tf.Tensor:
    """Returns what one gradient call adds to the tally.

    Args:
      checks: for results of the call, by position, whether they are finite, bool, ().
      owners: for each result the position of its variable among the scaler's source
        variables, None for none.
      count: how many source variables the scaler has.

    Returns:
      int64, shape (count + 1,): 1 for the call, then for each source variable 1 if its
      gradient was not finite.
    """
    of: dict[int, tf.Tensor] = {}
    for index, check in checks.items():
        owner = owners[index] if owners else None
        if owner is not None:
            of.setdefault(owner, check)
    called, fine = tf.constant(False), tf.constant(True)
    flags = tf.stack([called, *(of.get(owner, fine) for owner in range(count))])
    return tf.cast(tf.logical_not(flags), tf.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """A tally that was read, or what came to it between two readings.

    Attributes:
      calls: gradient calls.
      overflows: in how many of them the gradient of each variable was not finite, by
        the variable's name, in the order in which the gradients were asked for; at
        least, where replicas count.
    """

    calls: int
    overflows: Mapping[str, int]

    @property
    def names(self) -> list[str]:
        """The variables whose gradients were ever not finite.

        The order is that in which a backward pass comes by: programs list variables
        from the first layer to the last.
        """
        return [name for name in [*self.overflows][::-1] if self.overflows[name]]

    @property
    def never_finite(self) -> bool:
        """Whether there was a call, and in none all gradients were finite."""
        return 0 < self.calls <= max(self.overflows.values(), default=0)

    def since(self, before: Tally | None) -> Tally:
        """What came after an earlier reading; all, if the tally began anew since.

        It does where a state is restored.
        """
        if before is None or self.calls < before.calls:
            return self
        earlier = before.overflows
        came = {n: count - earlier.get(n, 0) for n, count in self.overflows.items()}
        return Tally(self.calls - before.calls, came)


def read(values: Sequence[Any], names: Sequence[str]) -> Tally:
    """Returns the tally of a scaler.

    Replicas make the same calls, and often overflow together: of each count the largest
    is true of the job.

    Args:
      values: what each replica's copy holds, as NumPy arrays.
      names: of the source variables.
    """
    calls, *overflows = np.max(np.stack(values), axis=0).tolist()
    return Tally(int(calls), dict(zip(names, map(int, overflows), strict=True)))
