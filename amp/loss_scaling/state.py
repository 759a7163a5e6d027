"""The scalers of this process or session graph, and how one is found again.

`find` is called for every gradient call that is scaled, and returns the same scaler
each time a function is retraced. `serving` finds scalers by their variables, for
optimizers. `group` is what users save in checkpoints.

No gradients, no optimizers and no private name of TensorFlow: the caller says which
gradient call it is and by which variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import tensorflow as tf

from amp.loss_scaling import (
    backup,
    names,
    placement,
    provenance,
    stalls,
    traced_updates,
)
from amp.loss_scaling.group import LOCK, Gone, current, let_go
from amp.loss_scaling.placement import ScalerSite
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LossScale
from amp.loss_scaling.scaler import Scaler
from amp.once import Once

CallSite: TypeAlias = tuple[str, int]
_Key: TypeAlias = tuple[CallSite, tuple[int, ...], LossScale, bool, int]


_MAKING = Once()
_ANYWHERE = ScalerSite()


def find(
    site: CallSite,
    sources: Sequence[tf.Variable],
    rule: LossScale,
    place: ScalerSite = _ANYWHERE,
) -> Scaler:
    """Returns the scaler of a gradient call; makes it at the first call.

    Calls of one line by the same variables share a scaler, so that a function which is
    retraced finds it again. In a session graph every call gets its own: there a line in
    a Python loop builds several calls, which run at the same time (one per GPU, say).

    Args:
      site: file name and line of the call.
      sources: the trainable variables by which the gradient is taken; held weakly.
      rule: the rule of the policy; not NoLossScale.
      place: where the call's target is computed. The scaler of a session graph is made
        in the same task (see `placement.in_session`), any other on the device of its
        first variable, because steps that update the variable can reach that device.

    Raises:
      RuntimeError: making the scaler led back here, in the same thread.
    """
    identities = tuple(id(variable) for variable in sources)
    let_go()
    eager = _outermost_is_eager()
    call = 0 if eager else current().next_number()
    first = sources[0].device
    device = first if eager else placement.in_session(place.device, first)
    place = dataclasses.replace(place, device=device, line=names.line(*site))
    key = (site, identities, rule, place.agreed, call)

    def known() -> Scaler | None:
        return SCALING.scalers.get(key)

    found = _MAKING.get(key, known, lambda: _create(key, sources, place))
    if found is None:  # making it led back here, in the same thread
        raise RuntimeError(f"a scaler of {site[0]}:{site[1]} is being made already")
    return found


def serving(variables: Sequence[tf.Variable]) -> list[tuple[Scaler, list[int]]]:
    """Returns the scalers that have source variables among `variables`.

    Returns:
      (scaler, positions of those variables among its source variables) for each.
    """
    let_go()
    with LOCK:
        return _serving(variables)


def _serving(variables: Sequence[tf.Variable]) -> list[tuple[Scaler, list[int]]]:
    scalers = list(SCALING.scalers.values())
    found = [(scaler, scaler.positions(variables)) for scaler in scalers]
    return [(scaler, positions) for scaler, positions in found if positions]


@contextlib.contextmanager
def ready_inside() -> Iterator[None]:
    """A scope for the gradient of a graph with scaled calls in loops or branches.

    For what goes through a `While` of TensorFlow 2 without a gradient, the variables of
    a scaler in its body among it, the gradient has zeros of its shape, and reads that.
    In a session, what is built here runs after these variables have values.

    Not for loops and branches of TensorFlow 1: a node in one of their gradients that
    waits for a node outside is dead.
    """
    with contextlib.ExitStack() as scopes:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        second = tf.compat.v1.control_flow_v2_enabled()
        if graph is not None and second and provenance.has_inside(graph):
            for scaler in current().scalers:
                scopes.enter_context(scaler.ready())
        yield


def any_scaler() -> bool:
    """Whether there is any scaler, those of session graphs included."""
    return bool(SCALING.scalers)


def kept(variables: Sequence[tf.Variable]) -> backup.Numbers:
    """Returns the state of the scalers of these variables, for a weight file."""
    let_go()
    with LOCK:
        scalers = [scaler for scaler, _ in _serving(variables)]
        waiting = backup.waiting(variables)
    return backup.kept(scalers, waiting)


def give_back(variables: Sequence[tf.Variable], numbers: backup.Numbers) -> None:
    """Restores what `kept` returned; a scaler made later gets its values then."""
    let_go()
    with LOCK:
        scalers = [scaler for scaler, _ in _serving(variables)]
        backup.keep_waiting(variables, list(numbers[len(scalers) :]))
    for scaler, row in zip(scalers, numbers, strict=False):
        backup.give_back(scaler, row)


def in_sessions() -> bool:
    """Whether any `tf.compat.v1` graph has had a scaler.

    Its skipped steps are counted in sessions and so are not in `skipped_steps()`.
    """
    return bool(SCALING.in_sessions)


def skipped_steps() -> int:
    """Returns the number of updates that this process has skipped.

    Scalers that are deleted meanwhile are included, those of `tf.compat.v1` graphs are
    not.
    """
    let_go()
    with LOCK:
        past = SCALING.past
        scalers = [scaler for group in SCALING.group for scaler in group.living()]
    return past + sum(int(scaler.skipped_steps.numpy()) for scaler in scalers)


def _create(key: _Key, sources: Sequence[tf.Variable], place: ScalerSite) -> Scaler:
    if placement.replicas() is not None:
        place.same(repr(key[2]))
    group = current()
    name = place.name or names.of([source.name for source in sources], place.line)
    with group.reserved(name) as (number, name):
        place = dataclasses.replace(place, name=name)
        scaler = Scaler(key[2], sources, number, place)
        group.add(scaler, number)
    with LOCK:
        SCALING.scalers[key] = scaler
        rows = [backup.taken(sources)]
    # Before anything that may fail: the scaler is found from here on.
    gone = Gone(weakref.ref(group), weakref.ref(scaler), place.lasts)
    for variable in sources:
        weakref.finalize(variable, SCALING.gone.append, gone).atexit = False
    if group in SCALING.group:
        rows.append(backup.taken_by_name(name))
    traced_updates.made(sources)
    for row in rows:
        if row is not None:
            backup.give_back(scaler, row)
    if group in SCALING.group and not scaler.shared:
        stalls.watch(scaler)
    elif group not in SCALING.group and not SCALING.in_sessions:
        SCALING.in_sessions.append(key)
    return scaler


def _outermost_is_eager() -> bool:
    with tf.init_scope():
        return bool(tf.executing_eagerly())
