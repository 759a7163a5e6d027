"""`Scaler`: the state of loss scaling for one gradient call of the program.

A scaler holds the scale and its counts in TensorFlow variables. `state.find` makes one
for each gradient call; `gradients` reads its scale and steps it; `update` asks it
whether an update is to be skipped.

Under several replicas of a `tf.distribute` strategy each replica has a copy of these
variables. It notes overflows in its own copy. All copies have the same scale, because
it changes only where replicas update, by what they agreed on. Workers of a parameter
server's coordinator share one copy and do not agree: each looks at the flags of its own
gradient calls (`stepped_here`).

No gradients and no optimizers: the caller says for which variables a scaler is and
where it is kept. TensorFlow's private methods of checkpoints are overridden, never
called otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.loss_scaling import (
    branches,
    control,
    entries,
    names,
    node_names,
    placement,
    stalls,
)
from amp.loss_scaling.scale import LossScale, ScaleState


@dataclasses.dataclass(frozen=True, slots=True)
class _Sources:
    """The variables by which a gradient is taken, by weak reference, in order."""

    references: tuple[weakref.ref[Any], ...]

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        wanted = {id(variable) for variable in variables}
        found = [reference() for reference in self.references]
        return [i for i, v in enumerate(found) if v is not None and id(v) in wanted]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of a checkpoint, by name.

    In a class of their own, because TensorFlow tracks everything that is an attribute
    of the scaler itself, and would save it under another name.

    Args:
      saved: entries that are written and read.
      dropped: entries of earlier versions, which are read and ignored.
    """

    saved: Mapping[str, entries.Entry]
    dropped: Mapping[str, entries.Entry]


# Not a str: meta graphs are exported with the collections that have a str key.
_STEPPED = ("amp", "stepped")


class Scaler(control.Controlled, tf.Module):  # type: ignore[misc]
    """The state of one gradient call: a line of the program, however often it runs.

    Source variables are those by which the gradient is taken.

    Attributes:
      name: what it is called, after its variables or its line (see `names`).
      line: the file and line of the gradient call, such as train.py:42.
      settings: the rule by which the scale changes.
      scale: what the next seeds are multiplied by, float32, shape ().
      good_steps: finite calls since the scale last changed, int64, shape ().
      bad_steps: overflows in a row since the scale last backed off, int64, shape ().
      overflow: for each source variable, the number of overflows for which no optimizer
        has skipped an update yet, int64, shape (number of source variables,).
      left_out: for each source variable, 1 if its last update was skipped, else 0,
        int64, shape (number of source variables,).
      skipped_steps: the number of updates that were skipped, int64, shape ().
      stalled: the number of overflows without a good step after them, as counted by
        `stalls.count`, int64, shape ().
      tally: gradient calls so far, then for each source variable the number of them in
        which its gradient was not finite, int64, shape (number of source variables +
        1,); see `loss_scaling.tally`.
      number: of the scaler in its group.
      names: of the source variables.
      shared: whether several workers step it at the same time, because it is kept on
        another task than theirs.
      agreed: see `placement.ScalerSite`.

    No variable is int32: TensorFlow keeps those on the host, which a step that XLA
    compiles for a GPU cannot reach. `entries` says what checkpoints contain.
    """

    def __init__(
        self,
        settings: LossScale,
        sources: Sequence[tf.Variable],
        index: int,
        place: placement.ScalerSite | None = None,
    ) -> None:
        super().__init__(name="loss_scaler")
        self.settings = settings
        site = place or placement.ScalerSite()
        self._called, self.line = site.name or "loss_scaler", site.line
        self._agree = site.agree
        self.shared, self.agreed = False, site.agreed
        self._sources = _Sources(tuple(weakref.ref(v) for v in sources))
        self.number = index
        self.names = names.distinct([source.name for source in sources])
        self._make(site, index, len(sources))
        self._entries = _Entries(
            {field: self._entry(field) for field in entries.SAVED},
            {field: entries.dropped(field) for field in entries.DROPPED},
        )

    def _make(self, site: placement.ScalerSite, index: int, sources: int) -> None:
        """Makes the variables and, in a session graph, their initialisation."""
        name, strategy = node_names.scaler(index), placement.replicas()
        make = functools.partial(placement.variable, site=site)
        zero = tf.int64.as_numpy_dtype(0)
        place = placement.outside_functions(site.device)
        with place, placement.copies(strategy), tf.name_scope(name):
            self.shared = tf.executing_eagerly() and placement.elsewhere(site.device)
            first = tf.constant(self.settings.initial, tf.float32)
            self.scale = make("scale", first)
            self.good_steps = make("good_steps", tf.constant(zero))
            self.bad_steps = make("bad_steps", tf.constant(zero))
            self.overflow = make("overflow", tf.zeros([sources], tf.int64))
            self.left_out = make("left_out", tf.zeros([sources], tf.int64))
            self.skipped_steps = make("skipped_steps", tf.constant(zero))
            self.stalled = make("stalled", tf.constant(zero))
            self.tally = make("tally", tf.zeros([sources + 1], tf.int64))
            self._ready = self._value = self._begun = None
            if not tf.executing_eagerly():
                rest = [v for v in self.variables if v is not self.scale]
                known = tf.compat.v1.is_variable_initialized(self.scale)
                self._begun = known
                self._ready = placement.initialised(known, self.scale, rest)
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

    @property
    def value(self) -> Any:
        """The scale, which sessions may read before their first step too."""
        return self.scale if self._value is None else self._value

    @property
    def begun(self) -> Any:
        """Whether a session's variables have their first values; None outside of one.

        A run that reads one that has none fails, and TensorFlow writes so to the log.
        """
        return self._begun

    def ready(self) -> Any:
        """A scope; what is built in it runs after the variables are initialised."""
        ready, graph = self._ready, tf.compat.v1.get_default_graph()
        if ready is None:
            return contextlib.nullcontext()
        if graph.building_function:
            # A `Defun` may read what is outside, not wait for it, and TensorFlow breaks
            # a `While` that waits where it adds to its inputs for the gradient.
            ready = tf.identity(ready)
        return tf.control_dependencies([ready])

    def factor(self) -> tf.Tensor:
        """Returns the scale to use now, float32, shape ()."""
        if self.settings.bounds is None:
            return tf.constant(self.settings.initial, tf.float32)
        with self.ready():
            return self.scale.read_value()

    def label(self, position: int) -> str:
        """The attribute `ir.SOURCE` of a gradient by a source variable."""
        return f"{self.number}:{self.names[position]}"

    def step(
        self, finite: tf.Tensor, *, waits: bool = True, counted: Any = None
    ) -> Any:
        """Notes the result of one gradient call, and changes the scale if `agreed`.

        Args:
          finite: whether all gradients of the call were finite, bool, shape ().
          waits: whether an overflow is noted until an optimizer skips an update for it.
          counted: what the call adds to the tally; None for nothing.

        Returns:
          The operation to run before the gradients are used; None when eager.
        """
        with self.ready():
            noted = self.note(finite) if waits else []
            noted += [] if counted is None else [self.tally.assign_add(counted)]
            return tf.group(*noted, *(self.move(finite) if self.agreed else []))

    def note(self, finite: tf.Tensor) -> list[Any]:
        """Notes an overflow until an optimizer skips an update for it.

        Returns:
          The operations that do.
        """
        if self.shared and tf.inside_function():
            tf.compat.v1.add_to_collection(_STEPPED, (self, finite))
        # Added, not assigned: calls before one update must not lose a flag.
        flag = tf.cast(tf.logical_not(finite), tf.int64)
        return [self.overflow.assign_add(tf.fill(self.overflow.shape, flag))]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def update(self, finite: Any) -> Any:
        """Changes the scale by the rule: once per step that is scaled by hand.

        Args:
          finite: whether all gradients of the step were finite: the flag of
            `amp.loss_scaling.unscale`, or what `apply_if_finite` returned. Bool, shape
            (). Replicas agree on it, so all of them have to come here.

        Returns:
          The operation to run in a session; None when eager.
        """
        finite = self._agree(tf.convert_to_tensor(finite))
        with self.ready():
            return tf.group(*self.move(finite))

    def stepped_here(self) -> list[tf.Tensor]:
        """The `finite` flags of the gradient calls in the function being traced.

        Only for a scaler that workers share. Its variables do not tell which worker an
        overflow came from, and a worker skips an update only for its own.
        """
        if not self.shared or not tf.inside_function():
            return []
        graph = tf.compat.v1.get_default_graph()
        calls = graph.get_collection(_STEPPED)
        return [flag for s, flag in calls if s is self and flag.graph is graph]

    def move(self, finite: tf.Tensor) -> list[Any]:
        """Changes the scale and its counts by the rule.

        Args:
          finite: whether all gradients were finite, in all replicas, bool, shape ().

        Returns:
          The operations that assign the new values.
        """
        with self._late(finite):
            scale, before = self.scale.read_value(), self.stalled.read_value()
            stalled = stalls.count(self.settings, scale, before, (finite, tf.where))
            writes = [self.stalled.assign(stalled)]
            if self.settings.bounds is not None:
                old = ScaleState(
                    scale=scale,
                    good_steps=self.good_steps.read_value(),
                    bad_steps=self.bad_steps.read_value(),
                )
                new = self.settings.step(old, finite, tf.where)
                writes += [
                    self._set(scale, new.scale),
                    self.good_steps.assign(new.good_steps),
                    self.bad_steps.assign(new.bad_steps),
                ]
        return writes

    def _late(self, finite: tf.Tensor) -> Any:
        """A scope; in a session graph, what is built in it runs once `finite` is known.

        A session runs trips of a loop at the same time, and one that did not overflow
        must not undo the overflow of another: it reads late, and writes only a scale
        that changes (`_set`). In functions TensorFlow orders reads and writes itself.
        """
        return tf.control_dependencies([finite] if self.in_session else [])

    def _set(self, old: tf.Tensor, new: tf.Tensor) -> Any:
        """Gives the scale a value; in a session graph only if it is another one."""
        if not self.in_session:
            return self.scale.assign(new)

        def write() -> tf.Tensor:
            with tf.control_dependencies([self.scale.assign(new, read_value=False)]):
                return tf.constant(True)

        differs = tf.not_equal(old, new)
        return branches.cond(differs, write, lambda: tf.constant(False))

    def forget(self) -> Any:
        """Forgets past overflows, when a checkpoint is restored in a session.

        Returns:
          The operation that does it.
        """
        each = (self.overflow, self.left_out, self.stalled, self.tally)
        return tf.group(*[v.assign(tf.zeros(v.shape, v.dtype)) for v in each])

    def positions(self, variables: Sequence[tf.Variable]) -> list[int]:
        """Returns the positions of those source variables that are in `variables`."""
        return self._sources.positions(variables)

    def handles(self) -> set[int]:
        """The identities of its source variables' handles, of all replicas.

        TensorFlow hands them to each function that reads one of the variables.
        """
        found = (each() for each in self._sources.references)
        copies = (getattr(v, "values", (v,)) for v in found if v is not None)
        return {id(copy.handle) for values in copies for copy in values}

    def serves(self) -> bool:
        """Whether one of its source variables is not deleted."""
        return any(each() is not None for each in self._sources.references)
