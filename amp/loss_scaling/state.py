"""The scalers of this process or session graph, and how one is found again.

`find` is called for every gradient call that is scaled, and returns the same scaler
each time a function is retraced. `serving` finds scalers by their variables, for
optimizers. `current` is what users save in checkpoints.

No gradients, no optimizers and no private name of TensorFlow: the caller says which
gradient call it is and by which variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.loss_scaling import backup, placement, stalls, traced_updates
from amp.loss_scaling.once import Once
from amp.loss_scaling.placement import ScalerSite
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LossScale
from amp.loss_scaling.scaler import Scaler

CallSite: TypeAlias = tuple[str, int]
_Key: TypeAlias = tuple[CallSite, tuple[int, ...], LossScale, bool, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Gone:
    """A scaler that is to be dropped, since one of its source variables is deleted.

    Args:
      key: of `SCALING.scalers`.
      group: the `Scalers` that it is in.
      number: its number in that group.
    """

    key: _Key
    group: weakref.ref[Scalers]
    number: int


class Scalers(tf.Module):  # type: ignore[misc]
    """The scalers of this process (or of one `tf.compat.v1` graph), for checkpoints.

    Each scaler is an attribute `scaler_<number>`, by which a checkpoint refers to it.
    A scaler that is made after a checkpoint was restored gets its values then.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scalers")
        self._numbers = _Numbers([], set())

    @property
    def scalers(self) -> list[Scaler]:
        """The scalers, in the order in which they were made."""
        _let_go()
        return self.living()

    def living(self) -> list[Scaler]:
        """As `scalers`, those of deleted variables included; runs no operation."""
        with _LOCK:
            return [getattr(self, f"scaler_{n}") for n in self._numbers.order]

    @property
    def states(self) -> list[Scaler]:
        """The same as `scalers`, under an older name."""
        return self.scalers

    @property
    def scale(self) -> Any:
        """The scale of the newest scaler, float32, shape (); 1 while there is none."""
        scalers = self.scalers
        return scalers[-1].value if scalers else tf.constant(1.0, tf.float32)

    def numbered(self) -> list[tuple[int, Scaler]]:
        """Returns (number, scaler) for each, in the order in which they were made."""
        return list(zip(self._numbers.order, self.scalers, strict=True))

    def next_number(self) -> int:
        """Returns the smallest number that is neither used nor reserved."""
        used = {*self._numbers.order, *self._numbers.reserved}
        return min(set(range(len(used) + 1)) - used)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[int]:
        """Keeps a number for a scaler that is made, and then added, inside."""
        with _LOCK:
            number = self.next_number()
            self._numbers.reserved.add(number)
        try:
            yield number
        finally:
            self._numbers.reserved.discard(number)

    def add(self, scaler: Scaler, number: int) -> None:
        """Adds a scaler. If a restored checkpoint has values for it, it gets these."""
        setattr(self, f"scaler_{number}", scaler)
        self._numbers.order.append(number)

    def remove(self, number: int) -> None:
        """Drops a scaler whose source variables are deleted."""
        self._numbers.order.remove(number)
        delattr(self, f"scaler_{number}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of the scalers, in a class because TensorFlow would wrap a list.

    Attributes:
      order: of the scalers that are made, in that order.
      reserved: of those that are being made.
    """

    order: list[int]
    reserved: set[int]


# Not a str: meta graphs are exported with the collections that have a str key.
_COLLECTION = ("amp", "loss_scalers")
# Held to read and write the registry only: meanwhile no operation runs, no variable is
# made and no worker is waited for.
# Reentrant, because the garbage collector may run a program's `__del__` at any line.
_LOCK = threading.RLock()
_MAKING = Once()
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
    _let_go()
    eager = _outermost_is_eager()
    call = 0 if eager else current().next_number()
    first = sources[0].device
    device = first if eager else placement.in_session(place.device, first)
    place = dataclasses.replace(place, device=device)
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
    _let_go()
    with _LOCK:
        return _serving(variables)


def _serving(variables: Sequence[tf.Variable]) -> list[tuple[Scaler, list[int]]]:
    scalers = list(SCALING.scalers.values())
    found = [(scaler, scaler.positions(variables)) for scaler in scalers]
    return [(scaler, positions) for scaler, positions in found if positions]


def any_scaler() -> bool:
    """Whether there is any scaler, those of session graphs included."""
    return bool(SCALING.scalers)


def kept(variables: Sequence[tf.Variable]) -> backup.Numbers:
    """Returns the state of the scalers of these variables, for a weight file."""
    _let_go()
    with _LOCK:
        scalers = [scaler for scaler, _ in _serving(variables)]
        waiting = backup.waiting(variables)
    return backup.kept(scalers, waiting)


def give_back(variables: Sequence[tf.Variable], numbers: backup.Numbers) -> None:
    """Restores what `kept` returned; a scaler made later gets its values then."""
    _let_go()
    with _LOCK:
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
    _let_go()
    with _LOCK:
        past = SCALING.past
        scalers = [scaler for group in SCALING.group for scaler in group.living()]
    return past + sum(int(scaler.skipped_steps.numpy()) for scaler in scalers)


def _create(key: _Key, sources: Sequence[tf.Variable], place: ScalerSite) -> Scaler:
    if placement.replicas() is not None:
        place.same(repr(key[2]))
    group = current()
    with group.reserved() as number:
        scaler = Scaler(key[2], sources, number, place)
        group.add(scaler, number)
    with _LOCK:
        SCALING.scalers[key] = scaler
        row = backup.taken(sources)
    traced_updates.made(sources)
    if row is not None:
        backup.give_back(scaler, row)
    if group in SCALING.group and not scaler.shared:
        stalls.watch(scaler, sources)
    elif group not in SCALING.group and not SCALING.in_sessions:
        SCALING.in_sessions.append(key)
    gone = _Gone(key, weakref.ref(group), number)
    for variable in sources:
        weakref.finalize(variable, SCALING.gone.append, gone).atexit = False
    return scaler


def _let_go() -> None:
    """Drops scalers whose source variables are deleted; keeps their skipped steps.

    Finalizers of variables only append to `SCALING.gone`, as they may run at any time.
    """
    while SCALING.gone:
        try:
            gone = SCALING.gone.popleft()
        except IndexError:  # another thread was faster
            return
        with _LOCK:
            scaler = SCALING.scalers.pop(gone.key, None)
        living = gone.group()
        if scaler is None or living is None:
            continue
        skipped = _skipped(scaler) if living in SCALING.group else 0
        with _LOCK:
            SCALING.past += skipped
            living.remove(gone.number)


def _skipped(scaler: Scaler) -> int:
    with tf.__internal__.eager_context.eager_mode():
        return int(scaler.copies("skipped_steps")[0].numpy())


def _outermost_is_eager() -> bool:
    with tf.init_scope():
        return bool(tf.executing_eagerly())
