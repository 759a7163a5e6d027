"""The variables of each scaler, and the registry that finds a scaler again.

No gradients, no optimizers and no private name of TensorFlow: which call a scaler
belongs to, and which variables it serves, is told by the caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.errors import CheckpointError
from amp.loss_scaling import branches
from amp.loss_scaling.scale import (
    ConstantLossScale,
    DynamicLossScale,
    LossScale,
    ScaleState,
)

CallSite: TypeAlias = tuple[str, int]
_Key: TypeAlias = tuple[CallSite, tuple[int, ...], LossScale, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Sources:
    """The variables a scaler serves, by weak reference, in order."""

    references: tuple[weakref.ref[Any], ...]

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        wanted = {id(variable) for variable in variables}
        found = [reference() for reference in self.references]
        return [i for i, v in enumerate(found) if v is not None and id(v) in wanted]


class Scaler(tf.Module):  # type: ignore[misc]
    """The state of the gradient calls of one place in the program.

    Attributes:
      settings: the rule.
      scale: the factor of the next loss, float32, shape ().
      good_steps: finite calls since the scale last changed, int32, shape ().
      bad_steps: overflows in a row not yet answered by a backoff, int32, shape ().
      overflow: overflows that no optimizer has answered yet, for each source variable,
        int32, shape (number of source variables,).
      left_out: 1 where a source variable's last update was left out, else 0, int32,
        shape (number of source variables,).
      skipped_steps: updates that were skipped, int64, shape ().
    """

    def __init__(
        self,
        settings: LossScale,
        sources: Sequence[tf.Variable],
        index: int,
        device: str = "",
    ) -> None:
        super().__init__(name="loss_scaler")
        self.settings = settings
        self._sources = _Sources(tuple(weakref.ref(v) for v in sources))
        each = [len(sources)]
        # The trailing slash makes the names the same wherever a gradient is taken.
        with _outside_functions(device), tf.name_scope(f"amp_loss_scale_{index}/"):
            self.scale = _variable("scale", tf.constant(settings.initial, tf.float32))
            self.good_steps = _variable("good_steps", tf.constant(0, tf.int32))
            self.bad_steps = _variable("bad_steps", tf.constant(0, tf.int32))
            self.overflow = _variable("overflow", tf.zeros(each, tf.int32))
            self.left_out = _variable("left_out", tf.zeros(each, tf.int32))
            self.skipped_steps = _variable("skipped_steps", tf.constant(0, tf.int64))
            self._ready = self._value = None
            if not tf.executing_eagerly():
                self._ready = self._initialised()
                with self.ready():
                    self._value = self.scale.read_value()

    def _initialised(self) -> tf.Tensor:
        """Returns a tensor that has a value once the variables have theirs.

        A session's job runs the initialisers that it knows of; it knows of none here.
        The scale comes last, so that it speaks for all.
        """

        def begin() -> tf.Tensor:
            rest = [v for v in self.variables if v is not self.scale]
            with tf.control_dependencies([_begin(v) for v in rest]):
                first = _begin(self.scale)
            with tf.control_dependencies([first]):
                return tf.constant(True)

        known = tf.compat.v1.is_variable_initialized(self.scale)
        return branches.cond(known, lambda: tf.constant(True), begin)

    @property
    def value(self) -> Any:
        """The scale, to be read at any time, before a session's first step too."""
        return self.scale if self._value is None else self._value

    def ready(self) -> Any:
        """What is built inside runs when every variable has a value."""
        if self._ready is None:
            return contextlib.nullcontext()
        return tf.control_dependencies([self._ready])

    def factor(self) -> tf.Tensor:
        """Returns the scale to use now, float32, shape ()."""
        if isinstance(self.settings, ConstantLossScale):
            return tf.constant(self.settings.initial, tf.float32)
        with self.ready():
            return self.scale.read_value()

    def step(self, finite: tf.Tensor, *, waits: bool = True) -> Any:
        """Answers one gradient call.

        Args:
          finite: whether all of its gradients were, bool, shape ().
          waits: whether an overflow waits for an optimizer to answer it.

        Returns:
          The operation to run before the gradients are used; None when eager.
        """
        with self.ready():
            return tf.group(*self._writes(finite, waits))

    def _writes(self, finite: tf.Tensor, waits: bool) -> list[Any]:
        writes = []
        if waits:
            # Added, not assigned: calls before one update must not lose a flag.
            flag = tf.cast(tf.logical_not(finite), tf.int32)
            writes = [self.overflow.assign_add(tf.fill(self.overflow.shape, flag))]
        if isinstance(self.settings, DynamicLossScale):
            old = ScaleState(
                scale=self.scale.read_value(),
                good_steps=self.good_steps.read_value(),
                bad_steps=self.bad_steps.read_value(),
            )
            new = self.settings.step(old, finite, tf.where)
            writes += [
                self.scale.assign(new.scale),
                self.good_steps.assign(new.good_steps),
                self.bad_steps.assign(new.bad_steps),
            ]
        return writes

    def forget(self) -> Any:
        """Clears what is known of single variables; returns the operation that does."""
        each = (self.overflow, self.left_out)
        return tf.group(*[v.assign(tf.zeros_like(v.initial_value)) for v in each])

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        """Returns where `variables` stand among the source variables."""
        return self._sources.positions(variables)


class Scalers(tf.Module):  # type: ignore[misc]
    """The scalers of this process (or of one `tf.compat.v1` graph), for checkpoints.

    A scaler keeps its number, so a checkpoint finds it again, whether it was made
    before the checkpoint was restored or is made only afterwards.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scalers")
        self._numbers = _Numbers([])

    @property
    def states(self) -> list[Scaler]:
        """The scalers, the oldest first."""
        return [getattr(self, f"scaler_{n}") for n in tuple(self._numbers.order)]

    @property
    def scale(self) -> Any:
        """The scale of the newest scaler, float32, shape (); 1 while there is none."""
        states = self.states
        return states[-1].value if states else tf.constant(1.0, tf.float32)

    def numbered(self) -> list[tuple[int, Scaler]]:
        """Returns the scalers with their numbers, the oldest first."""
        return list(zip(self._numbers.order, self.states, strict=True))

    def next_number(self) -> int:
        """Returns the smallest number that no living scaler has."""
        return min(set(range(len(self._numbers.order) + 1)) - set(self._numbers.order))

    def add(self, scaler: Scaler, number: int) -> None:
        """Takes in a scaler; a restored checkpoint that waits for it is applied.

        Raises:
          CheckpointError: the checkpoint's state has another shape.
        """
        name = f"scaler_{number}"
        try:
            setattr(self, name, scaler)
        except ValueError as e:
            raise CheckpointError(
                f"a restored loss-scale state does not fit: {e}",
                where=f"amp.loss_scaling.current().{name}",
                allowed=f"a state for {scaler.overflow.shape[0]} variables",
                remedy="restore without amp.loss_scaling.current() in the checkpoint",
            ) from e
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
# Reentrant: a variable may be collected, and its scaler dropped, while it is held.
_LOCK = threading.RLock()
# Held by their group: a `tf.compat.v1` graph and its scalers go together.
_SCALERS: weakref.WeakValueDictionary[_Key, Scaler] = weakref.WeakValueDictionary()
_PROCESS: list[Scalers] = []
_PAST: list[tf.Variable] = []  # skipped_steps of this process's scalers that are gone


def current() -> Scalers:
    """Returns the scalers of this process, or of the session graph being built."""
    with _LOCK, tf.init_scope():
        if tf.executing_eagerly():
            place: list[Scalers] = _PROCESS
        else:
            graph = tf.compat.v1.get_default_graph()
            place = graph.get_collection_ref(_COLLECTION)
        if not place:
            place.append(Scalers())
        return place[0]


def find(
    site: CallSite, sources: Sequence[tf.Variable], rule: LossScale, device: str = ""
) -> Scaler:
    """Returns the scaler of a gradient call, the same one at every retrace.

    A session graph is built once and its calls run side by side (a tower for each
    device, say), so there every call has one of its own.

    Args:
      site: file name and line of the call.
      sources: the trainable variables differentiated by; held weakly.
      rule: the settings, not NoLossScale.
      device: where the call's target is computed; a session graph's scaler is kept in
        the same task, so that workers of one parameter server do not share it.
    """
    identities = tuple(id(variable) for variable in sources)
    with _LOCK:
        call = 0 if _outermost_is_eager() else current().next_number()
        key = (site, identities, rule, call)
        scaler = _SCALERS.get(key)
        if scaler is None:
            scaler = _create(key, sources, device)
        return scaler


def serving(variables: Sequence[tf.Variable]) -> list[tuple[Scaler, list[int]]]:
    """Returns the scalers with sources among `variables`, and where they stand."""
    with _LOCK:
        scalers = list(_SCALERS.values())
    found = [(scaler, scaler.positions(variables)) for scaler in scalers]
    return [(scaler, positions) for scaler, positions in found if positions]


def skipped_steps() -> int:
    """Returns the updates skipped by this process, by optimizers that are gone too.

    Those of `tf.compat.v1` graphs are counted in their sessions, and not here.
    """
    with _LOCK:
        living = [scaler.skipped_steps for group in _PROCESS for scaler in group.states]
        return sum(int(variable.numpy()) for variable in (*living, *_PAST))


def _create(key: _Key, sources: Sequence[tf.Variable], device: str) -> Scaler:
    group = current()
    number = group.next_number()
    scaler = Scaler(key[2], sources, number, device)
    group.add(scaler, number)
    _SCALERS[key] = scaler
    for variable in sources:
        weakref.finalize(
            variable, _drop, key, weakref.ref(group), number
        ).atexit = False
    return scaler


def _drop(key: _Key, group: weakref.ref[Scalers], number: int) -> None:
    with _LOCK:
        scaler = _SCALERS.pop(key, None)
        if scaler is None:
            return
        living = group()
        if living in _PROCESS:
            _PAST.append(scaler.skipped_steps)
        if living is not None:
            living.remove(number)


def _outermost_is_eager() -> bool:
    with tf.init_scope():
        return bool(tf.executing_eagerly())


@contextlib.contextmanager
def _outside_functions(device: str) -> Iterator[None]:
    """Enters eager code, or the session graph that everything is built in.

    In a session graph the scopes that surround the call (a parameter server's, say) do
    not place what is built; the task of `device` does.

    A function being traced makes the variables created inside it its own, traces itself
    again for them, and forbids them after its first call. It does so through its graph,
    also under `tf.init_scope`; under an empty graph the variables are ordinary ones.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            none = graph.colocate_with(None, True), tf.device(None)
            with none[0], none[1], tf.device(_task(device)):
                yield
            return
        eager_mode = tf.__internal__.eager_context.eager_mode
        with tf.Graph().as_default(), eager_mode():
            yield


def _task(device: str) -> str | None:
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type=None, device_index=None).to_string() or None


def _variable(name: str, value: tf.Tensor) -> tf.Variable:
    """Returns a variable that a session's job does not find among its own."""
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, name=name)
    return tf.compat.v1.Variable(
        value, trainable=False, name=name, collections=[], use_resource=True
    )


def _begin(variable: tf.Variable) -> Any:
    return variable.assign(variable.initial_value, read_value=False)
