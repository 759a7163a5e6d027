"""Skips an optimizer's update if a gradient that it uses overflowed.

Called by `training.conditional_updates` in place of an optimizer's `apply`, and by
`replica_sums` for gradients that replicas sum themselves. A *concern* is a scaler
with the flags that decide about an update.

Public TensorFlow only; how an optimizer is found, built and called is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from amp.loss_scaling import branches, provenance, state
from amp.loss_scaling.finite_checks import values_of
from amp.loss_scaling.scaler import Scaler


class Concern(NamedTuple):
    """A scaler whose overflow skips an update.

    Attributes:
      scaler: the scaler.
      positions: the positions of the updated variables among its source variables.
      calls: its gradient calls from which the update is computed. None if these are not
        known; then `Scaler.overflow` decides.
      moved: whether replicas have changed the scale by these calls before. It is as of
        when the concern was made: replicas take turns, and all have to decide alike.
      after: the tensors after which `Scaler.overflow` may be read. In a session graph
        nothing else says that the calls have noted their overflow by then.
    """

    scaler: Scaler
    positions: list[int]
    calls: tuple[provenance.Call, ...] | None = None
    moved: bool = False
    after: tuple[tf.Tensor, ...] = ()


def concerns(
    variables: Sequence[tf.Variable],
    calls: Sequence[provenance.Call] | None,
    grads: Sequence[Any],
) -> list[Concern]:
    """Returns the scalers whose overflow skips an update.

    Args:
      variables: the variables that are updated.
      calls: the gradient calls from which the update is computed. None if they are not
        known; then it is every scaler of the variables.
      grads: the gradients that it is computed from.
    """
    if calls is None:
        after = tuple(filter(tf.is_symbolic_tensor, map(values_of, grads)))
        served = (Concern(*found) for found in state.serving(variables))
        return [c._replace(after=after) if c.scaler.in_session else c for c in served]
    found: dict[int, list[provenance.Call]] = {}
    for call in calls:
        if call.waits:
            found.setdefault(id(call.scaler), []).append(call)
    return [_concern(each, variables) for each in found.values()]


def _concern(
    calls: Sequence[provenance.Call], variables: Sequence[tf.Variable]
) -> Concern:
    """The concern of calls of one scaler."""
    scaler, moved = calls[0].scaler, all(c.moved or c.counted for c in calls)
    return Concern(scaler, scaler.positions(variables), tuple(calls), moved)


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """How the replicas of a strategy decide together. The default is for one replica.

    Args:
      cond: like `branches.cond`, but replicas may wait for each other in its branches.
      agree: takes whether this replica's gradients are finite, and returns whether
        those of all replicas are. Every replica calls it once per update. None if there
        is only one replica.
      gather: takes a Python object of this replica, and returns those of all replicas
        that this process traces.
    """

    cond: Callable[..., Any] = branches.cond
    agree: Callable[[tf.Tensor], tf.Tensor] | None = None
    gather: Callable[[Any], list[Any]] = lambda own: [own]


ONE = Replicas()


class Left(Protocol):
    """The tensors that an update leaves for the program to read."""

    def tensors(self) -> Sequence[tf.Tensor]:
        """Returns them. Called where the update is built, once it is."""

    def put(self, tensors: Sequence[tf.Tensor]) -> None:
        """Takes what stands for them outside: zeros where the update did not run."""


def unless_overflow(
    concerns: Sequence[Concern],
    apply: Callable[[], Any],
    replicas: Replicas = ONE,
    finite: tf.Tensor | None = None,
    left: Left | None = None,
) -> Any:
    """Runs `apply`, or skips it after an overflow.

    ::

        if a gradient of the update overflowed, in any replica
           (if it is not known which gradients these are: any gradient by the
           variables, since their last update):
          overflow = 0; skipped_steps += 1; left_out = 1
        else:
          apply(); left_out = 0    # of other scalers of the variables: `told_to_all`

    With several replicas the scale changes here too, because all of them get here; a
    gradient may be taken by one of them alone.

    Args:
      concerns: what `concerns` returned. Each replica may have its own, or none.
      apply: the whole update; slots must exist already. Its result is not used.
      replicas: how the replicas decide together.
      finite: another condition for the update, bool, shape (). It does not change the
        scale. Without concerns there has to be one, or several replicas.
      left: knows the tensors of the update that are to be read outside.

    Returns:
      Whether the update ran, bool, shape ().
    """
    flags = [_pending(concern) for concern in concerns]
    if replicas.agree is not None:
        concerns, none = _agreed(concerns, flags, replicas)
        flags = [tf.logical_not(none)] * max(1, len(concerns))
        finite = finite if finite is None else replicas.agree(finite)
    if finite is not None:
        bad = tf.logical_not(finite)
        flags = [tf.logical_or(flag, bad) for flag in flags] or [bad]
    pending = tf.reduce_any(tf.stack(flags)) if len(flags) > 1 else flags[0]

    def skip() -> tf.Tensor:
        pairs = zip(concerns, flags, strict=False)
        return _after(tf.group(*[_answer(c, flag) for c, flag in pairs]), False)

    def run() -> tf.Tensor:
        done, noted = apply(), [_note(c, 0) for c in concerns]
        return _after(done, _after(tf.group(*noted), True))

    if left is None:
        return replicas.cond(pending, skip, run)
    return _leaving(left, pending, skip, run)


def _leaving(
    left: Left,
    pending: tf.Tensor,
    skip: Callable[[], tf.Tensor],
    run: Callable[[], tf.Tensor],
) -> tf.Tensor:
    """Makes the branches of an update whose tensors are to be read outside of it."""
    inside: list[tf.Tensor] = []

    def leave() -> list[tf.Tensor]:
        ran = run()
        inside[:] = left.tensors()
        return [ran, *inside]

    def nothing() -> list[tf.Tensor]:
        return [skip(), *map(_nothing, inside)]

    # The update is built first: it says what there is.
    ran, *outside = branches.cond(tf.logical_not(pending), leave, nothing)
    left.put(outside)
    return ran


def _nothing(tensor: tf.Tensor) -> tf.Tensor:
    """Zeros (or "" or False) in the shape of a tensor; sizes not known are 1."""
    sizes = tensor.shape.as_list() if tensor.shape.rank else []
    return tf.zeros([1 if size is None else size for size in sizes], tensor.dtype)


def agree_now(
    calls: Sequence[provenance.Call], replicas: Replicas
) -> tuple[list[Scaler], tf.Tensor]:
    """Has replicas agree on gradients that they sum outside an optimizer.

    Args:
      calls: the gradient calls from which this replica's part of the sum is computed.
      replicas: how the replicas decide together.

    Returns:
      The scalers of all replicas' calls, and whether all were finite, bool, shape ().
    """
    own = [_concern([call], ()) for call in calls if not call.moved]
    everyone, finite = _agreed(own, [_pending(c) for c in own], replicas)
    return [concern.scaler for concern in everyone], finite


def _agreed(
    own: Sequence[Concern], flags: Sequence[tf.Tensor], replicas: Replicas
) -> tuple[list[Concern], tf.Tensor]:
    """Has replicas agree whether a gradient overflowed in any of them.

    Args:
      own: the concerns of this replica.
      flags: for each of them, whether a gradient overflowed, bool, shape ().
      replicas: how the replicas decide together.

    Returns:
      The concerns of all replicas, one for each scaler, and whether no gradient
      overflowed in any replica, bool, shape (). The scales change before that tensor
      has a value, those that have not changed by the same calls before.
    """
    assert replicas.agree is not None
    everyone: dict[int, Concern] = {}
    for concern in [c for each in replicas.gather(list(own)) for c in each]:
        known = everyone.get(id(concern.scaler), concern)
        moved = known.moved and concern.moved
        everyone[id(concern.scaler)] = known._replace(moved=moved)
    pending = tf.reduce_any(tf.stack(flags)) if flags else tf.constant(False)
    finite = replicas.agree(tf.logical_not(pending))
    still = [c.scaler for c in everyone.values() if not c.moved]
    moved = [write for scaler in still for write in scaler.move(finite)]
    for call in [call for concern in own for call in concern.calls or ()]:
        call.counted = call.counted or _built_here(call.finite)
    return list(everyone.values()), _after(tf.group(*moved), finite)


def _built_here(tensor: tf.Tensor) -> bool:
    """Whether what is built now runs whenever this tensor is computed.

    Not in a branch, loop or function behind it.
    """
    if tf.executing_eagerly():
        return True
    here = tf.compat.v1.get_default_graph()
    return tf.is_symbolic_tensor(tensor) and tensor.graph is here


def unless_left_out(
    concerns: Sequence[tuple[Scaler, list[int]]],
    apply: Callable[[], Any],
    replicas: Replicas = ONE,
) -> Any:
    """Runs `apply`, unless the last update of one of these variables was skipped.

    Called in place of `tf.train.ExponentialMovingAverage.apply`: if the variables did
    not change, their averages are not to change either.

    Args:
      concerns: the scalers of the variables that are averaged, and the positions of
        these variables among the scaler's source variables.
      apply: the update of the averages, which must exist already.
      replicas: how the replicas decide together.

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


def told_to_all(
    apply: Callable[[], Any],
    variables: Sequence[tf.Variable],
    asked: Sequence[Concern],
) -> Callable[[], Any]:
    """Returns `apply` in a form that tells every scaler of its variables that it ran.

    The scalers of its own gradients note that themselves. Others of these variables, of
    gradients taken elsewhere, may have skipped the update before: they would keep
    moving averages as they are.

    Args:
      apply: the whole update, which may be a branch.
      variables: the variables that it updates.
      asked: the concerns of the update.
    """
    known = {id(concern.scaler) for concern in asked}
    others = [each for each in state.serving(variables) if id(each[0]) not in known]
    if not others:
        return apply

    def told() -> Any:
        noted = []
        for scaler, positions in others:
            with scaler.ready():
                noted.append(_write(scaler, scaler.left_out, positions, 0))
        with tf.control_dependencies([tf.group(*noted)]):
            return apply()

    return told


def _pending(concern: Concern) -> tf.Tensor:
    scaler, positions, calls = concern.scaler, concern.positions, concern.calls
    here = scaler.stepped_here() if calls is None else [c.finite for c in calls]
    if here:
        return tf.logical_not(tf.reduce_all(tf.stack(here)))
    # A node that waits for a call need not wait for what the call reads, once that is
    # inlined; one that reads its result does.
    after = [tf.identity(tensor) for tensor in concern.after]
    with tf.control_dependencies(after), scaler.ready():
        overflow = scaler.overflow.read_value()
    if len(positions) < overflow.shape[0]:
        overflow = tf.gather(overflow, positions)
    return tf.reduce_any(overflow > 0)


def _answer(concern: Concern, flag: tf.Tensor) -> Any:
    scaler = concern.scaler
    return tf.group(
        _write(scaler, scaler.overflow, concern.positions, 0),
        _note(concern, 1),
        scaler.skipped_steps.assign_add(tf.cast(flag, tf.int64)),
    )


def _note(concern: Concern, left_out: int) -> Any:
    scaler = concern.scaler
    return _write(scaler, scaler.left_out, concern.positions, left_out)


def _write(
    scaler: Scaler, variable: tf.Variable, positions: list[int], value: int
) -> Any:
    """Sets the elements at `positions` of one of a scaler's variables; others stay.

    A session may set others at the same time, so there it adds nothing to them. In
    functions TensorFlow orders what reads and writes a variable.
    """
    size = variable.shape[0]
    new = tf.fill([size], tf.constant(value, variable.dtype))
    if len(positions) == size:
        return variable.assign(new)
    meant = tf.constant([i in positions for i in range(size)])
    before = variable.read_value()
    if scaler.in_session:
        return variable.assign_add(tf.where(meant, new - before, tf.zeros_like(before)))
    return variable.assign(tf.where(meant, new, before))


def _after(done: Any, value: Any) -> tf.Tensor:
    """Returns `value` (bool, shape ()) once `done` has run, if it is an operation."""
    if tf.executing_eagerly() or not isinstance(done, (tf.Operation, tf.Tensor)):
        return tf.convert_to_tensor(value)
    with tf.control_dependencies([done]):
        return tf.identity(value)
