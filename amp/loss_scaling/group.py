"""The scalers of this process or session graph, as what users save in checkpoints.

A scaler is dropped when source variables of it are deleted (`let_go`). Which gradient
call a scaler belongs to is not known here; `state` adds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from amp.loss_scaling import backup, names
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scaler import Scaler

# Not a str: meta graphs are exported with the collections that have a str key.
_COLLECTION = ("amp", "loss_scalers")
# Held to read and write the registry only: meanwhile no operation runs, no variable is
# made and no worker is waited for.
# Reentrant, because the garbage collector may run a program's `__del__` at any line.
LOCK = threading.RLock()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gone:
    """A scaler of which a source variable is deleted.

    Args:
      group: the `Scalers` that it is in.
      scaler: the scaler itself.
      lasts: of its `placement.ScalerSite`.
    """

    group: weakref.ref[Scalers]
    scaler: weakref.ref[Scaler]
    lasts: bool


class Scalers(tf.Module):  # type: ignore[misc]
    """The scalers of this process (or of one `tf.compat.v1` graph), for checkpoints.

    Each scaler is an attribute `scaler_<number>`, by which a checkpoint refers to it.
    A scaler that is made after a checkpoint was restored gets its values then.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scalers")
        self._numbers = _Numbers([], {})

    @property
    def scalers(self) -> list[Scaler]:
        """The scalers, in the order in which they were made."""
        let_go()
        return self.living()

    def state_dict(self, session: Any = None) -> dict[str, dict[str, float | int]]:
        """Returns the state of each scaler, by its name, as Python numbers.

        Args:
          session: in a session graph, the session; by default the current one.

        Raises:
          LossScaleError: in a session graph, no session.
        """
        states = {name: backup.as_state(row) for name, row in self._waiting().items()}
        return states | {s.name: s.state_dict(session) for s in self.scalers}

    def load_state_dict(
        self, states: Mapping[str, Mapping[str, Any]], session: Any = None
    ) -> None:
        """Sets scalers to what `state_dict` returned, here or in another process.

        A scaler that is made later starts from the numbers under its name. All numbers
        are checked before any is set.

        Args:
          states: for each name of a scaler, its state.
          session: as of `state_dict`. All scalers of its graph have to exist.

        Raises:
          CheckpointError: states or numbers that `state_dict` did not make, or, in a
            session graph, a name that no scaler has.
          LossScaleError: in a session graph, no session.
        """
        here = {scaler.name: scaler for scaler in self.scalers}
        rows = {
            name: backup.row_of(state, f"the state of {name!r}").tolist()
            for name, state in backup.by_name(states).items()
        }
        later = {name: row for name, row in rows.items() if name not in here}
        if later and self not in SCALING.group:
            raise backup.unknown(list(later), list(here))
        self._waiting().update(later)
        for name in rows.keys() & here.keys():
            here[name].load_state_dict(states[name], session)

    def _waiting(self) -> dict[str, list[float]]:
        return SCALING.named if self in SCALING.group else {}

    def living(self) -> list[Scaler]:
        """As `scalers`, those of deleted variables included; runs no operation."""
        with LOCK:
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

    def next_number(self) -> int:
        """Returns the smallest number that is neither used nor reserved."""
        used = {*self._numbers.order, *self._numbers.reserved.values()}
        return min(set(range(len(used) + 1)) - used)

    @contextlib.contextmanager
    def reserved(self, name: str) -> Iterator[tuple[int, str]]:
        """Keeps a number and a name for a scaler that is made, and added, inside.

        Args:
          name: what the scaler is to be called; a number follows it if it is taken.
        """
        with LOCK:
            number, reserved = self.next_number(), self._numbers.reserved
            name = names.free(name, {s.name for s in self.living()} | reserved.keys())
            reserved[name] = number
        try:
            yield number, name
        finally:
            del reserved[name]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.scalers)) or "<no loss scalers>"

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
      reserved: of those that are being made, by their names.
    """

    order: list[int]
    reserved: dict[str, int]


def current() -> Scalers:
    """Returns the scalers of this process, or of the session graph being built."""
    with LOCK, tf.init_scope():
        if tf.executing_eagerly():
            place: list[Scalers] = SCALING.group
        else:
            graph = tf.compat.v1.get_default_graph()
            place = graph.get_collection_ref(_COLLECTION)
        if not place:
            place.append(Scalers())
        return place[0]


def of_graph(graph: Any) -> list[Scaler]:
    """The scalers of a `tf.compat.v1` graph; runs no operation."""
    return [
        one for group in graph.get_collection(_COLLECTION) for one in group.living()
    ]


def let_go() -> None:
    """Drops scalers whose source variables are deleted; keeps their skipped steps.

    Finalizers of variables only append to `SCALING.gone`, as they may run at any time.
    """
    while SCALING.gone:
        try:
            gone = SCALING.gone.popleft()
        except IndexError:  # another thread was faster
            return
        with LOCK:
            scaler = _taken_out(gone)
        living = gone.group()
        if scaler is None or living is None:
            continue
        skipped = 0
        try:
            if living in SCALING.group:
                skipped = _skipped(scaler)
        finally:
            with LOCK:
                SCALING.past += skipped
                living.remove(scaler.number)


def _taken_out(gone: Gone) -> Scaler | None:
    """Takes a scaler out of the registry; None if it stays, or is out already.

    One that stays gets another key: its own names a variable that is deleted, and a new
    one may have the identity of that.
    """
    scaler, kept = gone.scaler(), {}
    if scaler is None:
        return None
    stays = gone.lasts and scaler.serves()
    for key, each in SCALING.scalers.items():
        if each is not scaler:
            kept[key] = each
        elif stays:
            kept[gone] = each
    out = len(kept) < len(SCALING.scalers)
    SCALING.scalers = weakref.WeakValueDictionary(kept)
    return scaler if out else None


def _skipped(scaler: Scaler) -> int:
    """The steps skipped; 0 where the device cannot be read, which is not told here."""
    with (
        contextlib.suppress(tf.errors.OpError, RuntimeError),
        tf.__internal__.eager_context.eager_mode(),
    ):
        return int(scaler.copies("skipped_steps")[0].numpy())
    return 0
