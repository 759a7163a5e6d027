"""What an optimizer does with an overflow: leave the whole update out, and say so once.

Public TensorFlow only; how an optimizer is found, built and called is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amp.loss_scaling import branches, provenance, state
from amp.loss_scaling.scaler import Scaler


class Concern(NamedTuple):
    """A scaler that an update is to ask.

    Attributes:
      scaler: whose overflow it is.
      positions: where the variables that are updated stand among those it serves.
      finite: the flags of the gradient calls that flow into the update; None where they
        are not known, and what the scaler remembers decides.
      moved: whether replicas have agreed on these, and moved the scale, before.
    """

    scaler: Scaler
    positions: list[int]
    finite: tuple[tf.Tensor, ...] | None = None
    moved: bool = False


def concerns(
    variables: Sequence[tf.Variable], calls: Sequence[provenance.Call] | None
) -> list[Concern]:
    """Returns whom an update of variables is to ask.

    Args:
      variables: what is updated.
      calls: the gradient calls that flow into it, None if that is not known. Then every
        scaler of the variables is asked.
    """
    if calls is None:
        return [Concern(*found) for found in state.serving(variables)]
    flags: dict[int, list[tf.Tensor]] = {}
    scalers: dict[int, Scaler] = {}
    moved: dict[int, bool] = {}
    for call in calls:
        if call.waits:
            scalers[id(call.scaler)] = call.scaler
            moved[id(call.scaler)] = call.moved and moved.get(id(call.scaler), True)
            flags.setdefault(id(call.scaler), []).append(call.finite)
    return [
        Concern(scaler, scaler.positions(variables), tuple(flags[key]), moved[key])
        for key, scaler in scalers.items()
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """How replicas decide together; by default there is one.

    Args:
      cond: as `branches.cond`; replicas may meet in its branches.
      agree: whether this replica's gradients were finite, to whether all were; None
        where there is one. All replicas call it once for each update.
      gather: an object of each replica, to those of all that this process traces.
    """

    cond: Callable[..., Any] = branches.cond
    agree: Callable[[tf.Tensor], tf.Tensor] | None = None
    gather: Callable[[Any], list[Any]] = lambda own: [own]


ONE = Replicas()


def unless_overflow(
    concerns: Sequence[Concern], apply: Callable[[], Any], replicas: Replicas = ONE
) -> Any:
    """Runs `apply`, or instead answers the overflow that waits for these variables.

    ::

        if a gradient that flows into the update overflowed, in any replica
           (not known which do: any overflow of a concerned scaler, for the
           variables updated here):
          clear these; skipped_steps += 1; left_out = 1
        else:
          apply(); left_out = 0

    Replicas move their scales here, by what they agreed on: not where a gradient is
    taken, which some of them may do alone.

    Args:
      concerns: as `concerns` returned them.
      apply: the whole update, with nothing left to build; its result is dropped.
      replicas: how those that take part decide; of these, each may have concerns of
        its own, or none.

    Returns:
      Whether the update ran, bool, shape ().
    """
    flags = [_pending(concern) for concern in concerns]
    if replicas.agree is not None:
        concerns, finite = _agreed(concerns, flags, replicas)
        flags = [tf.logical_not(finite)] * max(1, len(concerns))
    pending = tf.reduce_any(tf.stack(flags)) if len(flags) > 1 else flags[0]

    def skip() -> tf.Tensor:
        pairs = zip(concerns, flags, strict=False)
        return _after(tf.group(*[_answer(c, flag) for c, flag in pairs]), False)

    def run() -> tf.Tensor:
        done, noted = apply(), [_note(c, 0) for c in concerns]
        return _after(done, _after(tf.group(*noted), True))

    return replicas.cond(pending, skip, run)


def agree_now(
    calls: Sequence[provenance.Call], replicas: Replicas
) -> tuple[list[Scaler], tf.Tensor]:
    """Has replicas agree on calls whose gradients they sum, as for an update.

    Args:
      calls: the gradient calls behind this replica's part of the sum.
      replicas: how they decide.

    Returns:
      The scalers of all replicas' calls, and whether all were finite, bool, shape ().
    """
    own = [Concern(c.scaler, [], (c.finite,)) for c in calls if not c.moved]
    everyone, finite = _agreed(own, [_pending(c) for c in own], replicas)
    return [concern.scaler for concern in everyone], finite


def _agreed(
    own: Sequence[Concern], flags: Sequence[tf.Tensor], replicas: Replicas
) -> tuple[list[Concern], tf.Tensor]:
    """Has replicas agree, once, on the overflows of all that concerns any of them.

    Returns:
      The concerns of all replicas, one for each scaler, and whether no gradient
      overflowed in any replica, bool, shape (), after which the scales have moved.
    """
    assert replicas.agree is not None
    everyone: dict[int, Concern] = {}
    for concern in [c for each in replicas.gather(list(own)) for c in each]:
        everyone.setdefault(id(concern.scaler), concern)
    pending = tf.reduce_any(tf.stack(flags)) if flags else tf.constant(False)
    finite = replicas.agree(tf.logical_not(pending))
    still = [c.scaler for c in everyone.values() if not c.moved]
    moved = [write for scaler in still for write in scaler.move(finite)]
    return list(everyone.values()), _after(tf.group(*moved), finite)


def unless_left_out(
    concerns: Sequence[tuple[Scaler, list[int]]],
    apply: Callable[[], Any],
    replicas: Replicas = ONE,
) -> Any:
    """Runs `apply`, unless the last update of one of these variables was left out.

    Args:
      concerns: the scalers of the variables that are averaged, and their positions.
      apply: the moving averages' update, with nothing left to build.
      replicas: how those that take part decide.

    Returns:
      Whether it ran, bool, shape ().
    """
    flags = []
    for scaler, positions in concerns:
        with scaler.ready():
            left_out = scaler.left_out.read_value()
        flags.append(tf.reduce_any(tf.gather(left_out, positions) > 0))
    left = tf.reduce_any(tf.stack(flags))
    return replicas.cond(
        left, lambda: tf.constant(False), lambda: _after(apply(), True)
    )


def _pending(concern: Concern) -> tf.Tensor:
    scaler, positions, finite, _ = concern
    here = scaler.stepped_here() if finite is None else list(finite)
    if here:
        return tf.logical_not(tf.reduce_all(tf.stack(here)))
    with scaler.ready():
        overflow = scaler.overflow.read_value()
    if len(positions) < overflow.shape[0]:
        overflow = tf.gather(overflow, positions)
    return tf.reduce_any(overflow > 0)


def _answer(concern: Concern, flag: tf.Tensor) -> Any:
    return tf.group(
        _write(concern.scaler.overflow, concern.positions, 0),
        _note(concern, 1),
        concern.scaler.skipped_steps.assign_add(tf.cast(flag, tf.int64)),
    )


def _note(concern: Concern, left_out: int) -> Any:
    return _write(concern.scaler.left_out, concern.positions, left_out)


def _write(variable: tf.Variable, positions: list[int], value: int) -> Any:
    """Sets the elements at `positions`; the others stay."""
    size = variable.shape[0]
    new = tf.fill([size], tf.constant(value, variable.dtype))
    if len(positions) < size:
        meant = tf.constant([i in positions for i in range(size)])
        new = tf.where(meant, new, variable.read_value())
    return variable.assign(new)


def _after(done: Any, value: Any) -> tf.Tensor:
    """Returns `value` (bool, shape ()) once `done` has run, if it is an operation."""
    if tf.executing_eagerly() or not isinstance(done, (tf.Operation, tf.Tensor)):
        return tf.convert_to_tensor(value)
    with tf.control_dependencies([done]):
        return tf.identity(value)
