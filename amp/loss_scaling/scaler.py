"""One scaler: its variables, their first values, and where they are kept.

No gradients, no optimizers, no registry and no private name of TensorFlow: which
variables a scaler serves, and the place it belongs to, is told by the caller.

Under several replicas of a `tf.distribute` strategy the variables are the strategy's: a
copy for each. Each replica notes its overflows in its own copy, and the scales in all
copies stay equal because they move where replicas update, by what they agree on.
Workers of a coordinator share one copy, and do not agree: each knows its own flag.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.loss_scaling import branches, entries, placement, stalls
from amp.loss_scaling.scale import LossScale, ScaleState


@dataclasses.dataclass(frozen=True, slots=True)
class _Sources:
    """The variables a scaler serves, by weak reference, in order."""

    references: tuple[weakref.ref[Any], ...]

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        wanted = {id(variable) for variable in variables}
        found = [reference() for reference in self.references]
        return [i for i, v in enumerate(found) if v is not None and id(v) in wanted]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entries:
    """What checkpoints see, where TensorFlow's attribute tracking does not look."""

    saved: Mapping[str, entries.Entry]
    dropped: Mapping[str, entries.Entry]


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerSite:
    """Where a gradient is taken.

    Args:
      device: where the scaler is kept.
      agreed: whether the flag of a gradient call is that of all who take part, as it is
        without replicas; if not, the update has them agree, and moves the scale.
      same: told the rule before a scaler is made of which other processes have to make
        a copy; raises where one has another rule.
    """

    device: str = ""
    agreed: bool = True
    same: Callable[[str], None] = lambda rule: None


# Not a str: meta graphs are exported with the collections that have a str key.
_STEPPED = ("amp", "stepped")


class Scaler(tf.Module):  # type: ignore[misc]
    """The state of the gradient calls of one place in the program.

    Attributes:
      settings: the rule.
      scale: the factor of the next loss, float32, shape ().
      good_steps: finite calls since the scale last changed, int64, shape ().
      bad_steps: overflows in a row not yet answered by a backoff, int64, shape ().
      overflow: overflows that no optimizer has answered yet, for each source variable,
        int64, shape (number of source variables,).
      left_out: 1 where a source variable's last update was left out, else 0, int64,
        shape (number of source variables,).
      skipped_steps: updates that were skipped, int64, shape ().
      stalled: overflows that no good step followed, as `stalls.count` says, int64,
        shape ().
      shared: whether several workers step it at once: it is kept on another task.
      agreed: as of `ScalerSite`.

    No variable is int32: TensorFlow keeps those on the host, where a step that XLA
    compiles for a GPU does not reach them. Checkpoints hold what `entries` says.
    """

    def __init__(
        self,
        settings: LossScale,
        sources: Sequence[tf.Variable],
        index: int,
        place: ScalerSite | None = None,
    ) -> None:
        super().__init__(name="loss_scaler")
        self.settings = settings
        place = place or ScalerSite()
        self.shared, self.agreed = False, place.agreed
        self._sources = _Sources(tuple(weakref.ref(v) for v in sources))
        self._names = tuple(source.name for source in sources)
        self._make(place.device, index, len(sources))
        self._entries = _Entries(
            {field: self._entry(field) for field in entries.SAVED},
            {field: entries.dropped(field) for field in entries.DROPPED},
        )

    def _make(self, device: str, index: int, sources: int) -> None:
        """Makes the variables; in a session graph, what gives them values too."""
        # The trailing slash makes the names the same wherever a gradient is taken.
        name, strategy = f"amp_loss_scale_{index}/", placement.replicas()
        make, zero = placement.variable, tf.int64.as_numpy_dtype(0)
        place = placement.outside_functions(device)
        with place, placement.copies(strategy), tf.name_scope(name):
            self.shared = tf.executing_eagerly() and placement.elsewhere(device)
            first = tf.constant(self.settings.initial, tf.float32)
            self.scale = make("scale", first)
            self.good_steps = make("good_steps", tf.constant(zero))
            self.bad_steps = make("bad_steps", tf.constant(zero))
            self.overflow = make("overflow", tf.zeros([sources], tf.int64))
            self.left_out = make("left_out", tf.zeros([sources], tf.int64))
            self.skipped_steps = make("skipped_steps", tf.constant(zero))
            self.stalled = make("stalled", tf.constant(zero))
            self._ready = self._value = None
            if not tf.executing_eagerly():
                self._ready = self._initialised()
                with self.ready():
                    self._value = self.scale.read_value()

    def _entry(self, field: str) -> entries.Entry:
        def read() -> tf.Tensor:
            with self.ready():
                return entries.to_file(field, self.copies(field)[0].read_value())

        return entries.Entry(read, lambda value: self.restore(field, value))

    def restore(self, field: str, value: tf.Tensor) -> Any:
        """Takes what a checkpoint holds of a variable; returns the operation that does.

        The scale speaks for all: with it, what is known of past overflows is cleared.
        """
        # A session that restores need not have given the variables their first values.
        with self.ready():
            done = [
                v.assign(entries.from_file(self.settings, field, value, v))
                for v in self.copies(field)
            ]
            if field == "scale":
                done.append(self.forget())
        return tf.group(*done)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        """What TensorFlow saves of this object; a SavedModel holds the variables."""
        if save_type == "savedmodel":
            return super()._trackable_children(save_type, **kwargs)
        return dict(self._entries.saved)

    def _lookup_dependency(self, name: str, cached: Any = None) -> Any:
        """What TensorFlow restores an entry of that name into.

        While attributes are set it asks too, and gives no children.
        """
        if cached is None:
            return super()._lookup_dependency(name)
        return cached.get(name) or self._entries.dropped.get(name)

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
        if self.settings.bounds is None:
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
        if self.shared and waits and tf.inside_function():
            tf.compat.v1.add_to_collection(_STEPPED, (self, finite))
        with self.ready():
            return tf.group(*self._writes(finite, waits))

    def stepped_here(self) -> list[tf.Tensor]:
        """Whether gradients were finite, of the calls in the function being traced.

        Workers that share a scaler know by these whose overflow it was.
        """
        if not self.shared or not tf.inside_function():
            return []
        graph = tf.compat.v1.get_default_graph()
        calls = graph.get_collection(_STEPPED)
        return [flag for s, flag in calls if s is self and flag.graph is graph]

    def _writes(self, finite: tf.Tensor, waits: bool) -> list[Any]:
        writes = []
        if waits:
            # Added, not assigned: calls before one update must not lose a flag.
            flag = tf.cast(tf.logical_not(finite), tf.int64)
            writes = [self.overflow.assign_add(tf.fill(self.overflow.shape, flag))]
        return writes + (self.move(finite) if self.agreed else [])

    def move(self, finite: tf.Tensor) -> list[Any]:
        """Moves the scale as the rule says; returns the operations that do."""
        scale, before = self.scale.read_value(), self.stalled.read_value()
        stalled = stalls.count(self.settings, scale, before, (finite, tf.where))
        writes = [self.stalled.assign(stalled)]
        if self._ready is not None:
            writes.append(stalls.printed(before, stalled, self._names))
        if self.settings.bounds is not None:
            old = ScaleState(
                scale=scale,
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

    def copies(self, name: str) -> Sequence[tf.Variable]:
        """Returns the variable of that name, of each replica in this process."""
        variable = getattr(self, name)
        strategy = getattr(variable, "distribute_strategy", None)
        if strategy is None:
            return [variable]
        return strategy.experimental_local_results(variable)  # type: ignore[no-any-return]

    def forget(self) -> Any:
        """Clears what is known of past overflows; returns the operation that does."""
        each = (self.overflow, self.left_out, self.stalled)
        return tf.group(*[v.assign(tf.zeros(v.shape, v.dtype)) for v in each])

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        """Returns where `variables` stand among the source variables."""
        return self._sources.positions(variables)


def _begin(variable: tf.Variable) -> Any:
    return variable.assign(variable.initial_value, read_value=False)
