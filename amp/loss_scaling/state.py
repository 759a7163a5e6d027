"""The scalers of this process or graph, and the registry that finds one again.

No gradients, no optimizers and no private name of TensorFlow: which call a scaler
belongs to, and which variables it serves, is told by the caller.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.loss_scaling import backup, placement, stalls, traced_updates
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LossScale
from amp.loss_scaling.scaler import Scaler, ScalerSite

CallSite: TypeAlias = tuple[str, int]
_Key: TypeAlias = tuple[CallSite, tuple[int, ...], LossScale, bool, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Gone:
    """A scaler one of whose variables is gone."""

    key: _Key
    group: weakref.ref[Scalers]
    number: int


class Scalers(tf.Module):  # type: ignore[misc]
    """The scalers of this process (or of one `tf.compat.v1` graph), for checkpoints.

    A scaler keeps its number, so a checkpoint finds it again, whether it was made
    before the checkpoint was restored or is made only afterwards.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scalers")
        self._numbers = _Numbers([])

    @property
    def scalers(self) -> list[Scaler]:
        """The scalers, the oldest first."""
        _let_go()
        return [getattr(self, f"scaler_{n}") for n in tuple(self._numbers.order)]

    @property
    def states(self) -> list[Scaler]:
        """The same as `scalers`, under its older name."""
        return self.scalers

    @property
    def scale(self) -> Any:
        """The scale of the newest scaler, float32, shape (); 1 while there is none."""
        scalers = self.scalers
        return scalers[-1].value if scalers else tf.constant(1.0, tf.float32)

    def numbered(self) -> list[tuple[int, Scaler]]:
        """Returns the scalers with their numbers, the oldest first."""
        return list(zip(self._numbers.order, self.scalers, strict=True))

    def next_number(self) -> int:
        """Returns the smallest number that no living scaler has."""
        return min(set(range(len(self._numbers.order) + 1)) - set(self._numbers.order))

    def add(self, scaler: Scaler, number: int) -> None:
        """Takes in a scaler; a restored checkpoint that waits for it is applied."""
        setattr(self, f"scaler_{number}", scaler)
        self._numbers.order.append(number)

    def remove(self, number: int) -> None:
        """Lets go of a scaler whose variables are gone."""
        self._numbers.order.remove(number)
        delattr(self, f"scaler_{number}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Numbers:
    """A plain list that TensorFlow's attribute tracking does not wrap."""

    order: list[int]


# Not a str: meta graphs are exported with the collections that have a str key.
_COLLECTION = ("amp", "loss_scalers")
# Reentrant: `kept` asks `serving`, and letting go of a scaler happens in both.
_LOCK = threading.RLock()
_ANYWHERE = ScalerSite()


def current() -> Scalers:
    """Returns the scalers of this process, or of the session graph being built."""
    with _LOCK, tf.init_scope():
        if tf.executing_eagerly():
            place: list[Scalers] = SCALING.group
        else:
            graph = tf.compat.v1.get_default_graph()
            place = graph.get_collection_ref(_COLLECTION)
        if not place:
            place.append(Scalers())
        return place[0]


def find(
    site: CallSite,
    sources: Sequence[tf.Variable],
    rule: LossScale,
    place: ScalerSite = _ANYWHERE,
) -> Scaler:
    """Returns the scaler of a gradient call, the same one at every retrace.

    A session graph is built once and its calls run side by side (a tower for each
    device, say), so there every call has one of its own.

    Args:
      site: file name and line of the call.
      sources: the trainable variables differentiated by; held weakly.
      rule: the settings, not NoLossScale.
      place: where the call's target is computed; a session graph's scaler is kept in
        the same task (see `placement.in_session`). Any other is kept on the device of
        its first variable, which the steps that update it reach.
    """
    identities = tuple(id(variable) for variable in sources)
    with _LOCK:
        _let_go()
        eager = _outermost_is_eager()
        call = 0 if eager else current().next_number()
        first = sources[0].device
        device = first if eager else placement.in_session(place.device, first)
        place = dataclasses.replace(place, device=device)
        key = (site, identities, rule, place.agreed, call)
        scaler = SCALING.scalers.get(key)
        if scaler is None:
            scaler = _create(key, sources, place)
        return scaler


def serving(variables: Sequence[tf.Variable]) -> list[tuple[Scaler, list[int]]]:
    """Returns the scalers with sources among `variables`, and where they stand."""
    with _LOCK:
        _let_go()
        scalers = list(SCALING.scalers.values())
    found = [(scaler, scaler.positions(variables)) for scaler in scalers]
    return [(scaler, positions) for scaler, positions in found if positions]


def any_scaler() -> bool:
    """Whether there is any scaler, of a session graph too."""
    return bool(SCALING.scalers)


def kept(variables: Sequence[tf.Variable]) -> backup.Numbers:
    """Returns what the scalers of these variables hold, the oldest first."""
    with _LOCK:
        return backup.kept([scaler for scaler, _ in serving(variables)], variables)


def give_back(variables: Sequence[tf.Variable], numbers: backup.Numbers) -> None:
    """Sets the scalers of these variables to what `kept` returned, now or when made."""
    with _LOCK:
        scalers = [scaler for scaler, _ in serving(variables)]
        backup.give_back(scalers, variables, numbers)


def in_sessions() -> bool:
    """Whether a `tf.compat.v1` graph has had a scaler, which counts in its sessions."""
    return bool(SCALING.in_sessions)


def skipped_steps() -> int:
    """Returns the updates skipped by this process, by optimizers that are gone too.

    Those of `tf.compat.v1` graphs are not among them.
    """
    with _LOCK:
        groups = [group.scalers for group in SCALING.group]
        living = [scaler.skipped_steps for group in groups for scaler in group]
        return SCALING.past + sum(int(variable.numpy()) for variable in living)


def _create(key: _Key, sources: Sequence[tf.Variable], place: ScalerSite) -> Scaler:
    if placement.replicas() is not None:
        place.same(repr(key[2]))
    group = current()
    number = group.next_number()
    scaler = Scaler(key[2], sources, number, place)
    group.add(scaler, number)
    SCALING.scalers[key] = scaler
    traced_updates.made(sources)
    backup.begin(scaler, sources)
    if group in SCALING.group and not scaler.shared:
        stalls.watch(scaler, sources)
    elif group not in SCALING.group and not SCALING.in_sessions:
        SCALING.in_sessions.append(key)
    gone = _Gone(key, weakref.ref(group), number)
    for variable in sources:
        weakref.finalize(variable, SCALING.gone.append, gone).atexit = False
    return scaler


def _let_go() -> None:
    """Drops the scalers whose variables are gone, and keeps what they counted."""
    with _LOCK:
        while SCALING.gone:
            gone = SCALING.gone.popleft()
            scaler = SCALING.scalers.pop(gone.key, None)
            if scaler is None:
                continue
            living = gone.group()
            if living in SCALING.group:
                with tf.__internal__.eager_context.eager_mode():
                    SCALING.past += int(scaler.copies("skipped_steps")[0].numpy())
            if living is not None:
                living.remove(gone.number)


def _outermost_is_eager() -> bool:
    with tf.init_scope():
        return bool(tf.executing_eagerly())
