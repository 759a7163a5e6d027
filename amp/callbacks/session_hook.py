"""`LossScaleHook`: the hook for sessions of `tf.compat.v1`.

What it reads are tensors that it adds to the graph before the session starts. They run
only in the steps that are read, so that all others are as they were. The user's tensors
and the state of the scalers are not changed.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import tensorflow as tf

from amp import messages
from amp.callbacks import readings
from amp.callbacks.pace import Pace
from amp.callbacks.readings import Reading
from amp.integration import fallback
from amp.integration.observing import step_variants
from amp.loss_scaling import current, exponents, tally
from amp.loss_scaling.tally import Tally


@dataclasses.dataclass(frozen=True, slots=True)
class _Built:
    """What the hook has added to the graph.

    Attributes:
      read: tensors to fetch, by scaler and by what they are.
      counts: for each scaler, the exponents of the gradient of each variable.
      gradients: for each scaler, the names of the operations that make these gradients.
    """

    read: dict[str, dict[str, Any]]
    counts: dict[str, dict[str, Any]]
    gradients: dict[str, frozenset[str]]


class LossScaleHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs the loss scale of a session job, and writes it for TensorBoard.

    The scale and the counts are read while a step runs: before or after its own update.
    A job may take its steps in turn (a GAN's): each scaler is read in a run that takes
    the gradients that it scales.

    Args:
      log_dir: where to write for TensorBoard; by default nothing is written.
      every: the runs from one reading of a scaler to the next; by default 100, or as
        many as keep a reading under 3 % of the time.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = "", every: int | None = None
    ) -> None:
        self._log_dir, self._pace = os.fspath(log_dir or ""), Pace(every)
        self._runs = 0
        self._due: dict[str, int] = {}  # by scaler, the run from which on it is read
        self._writer: Any = None
        self._built: _Built | None = None
        self._before: dict[str, Tally] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        # By the names of the operations that a run asks for, the scalers.
        self._takes: dict[tuple[str, ...], frozenset[str]] = {}

    def begin(self) -> None:
        """Adds the tensors to read to the graph."""
        self._pace.start()
        graph = tf.compat.v1.get_default_graph()
        scalers = current().scalers
        # Of another graph, whose scalers may have the same names.
        self._before, self._due, self._takes = {}, {}, {}
        self._names = {scaler.name: scaler.names for scaler in scalers}
        gradients = step_variants.gradients_in(graph)
        read, counts, names = {}, {}, {}
        for scaler in scalers:
            with scaler.ready():
                fields = ("scale", "skipped_steps", "tally")
                each = {name: getattr(scaler, name).read_value() for name in fields}
            read[scaler.name] = each
            labels = {scaler.label(i): n for i, n in enumerate(scaler.names)}
            own = [gradient for gradient in gradients if gradient.label in labels]
            counts[scaler.name] = {
                labels[g.label]: exponents.counted(_tensor(graph, g.edge)) for g in own
            }
            names[scaler.name] = frozenset(gradient.edge[0] for gradient in own)
        self._built = _Built(read, counts, names)

    def before_run(self, run_context: Any) -> Any:
        """Asks for what is to be read in this run."""
        built = self._built
        if built is None:
            return None
        due = [name for name in built.read if self._runs >= self._due.get(name, 0)]
        if not due:
            return None
        # A session also fetches types that the program has told it to take apart: what
        # is behind them is not known, and such a run is not read.
        asked = fallback.attempt_quietly(lambda: _operations(run_context), list[Any]())
        # A run without the gradients need not feed what they are computed from.
        takes = self._taken(built.gradients, asked)
        now = [name for name in due if name in takes]
        if not now:
            return None
        self._due |= dict.fromkeys(now, self._runs + self._pace.every)
        wanted = {
            "read": {name: built.read[name] for name in now},
            "counts": {name: built.counts[name] for name in now},
        }
        return tf.compat.v1.train.SessionRunArgs(wanted)

    def _taken(
        self, gradients: dict[str, frozenset[str]], operations: list[Any]
    ) -> frozenset[str]:
        """The scalers whose gradients a run computes, all that were found of each.

        The graph is walked once for such runs.
        """
        key = tuple(operation.name for operation in operations)
        if key not in self._takes:
            names = step_variants.executed(operations)
            self._takes[key] = frozenset(
                n for n, own in gradients.items() if own <= names
            )
        return self._takes[key]

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Logs and writes what was read."""
        found = run_values.results or {}
        if found:
            made = [self._reading(n, found) for n in found["read"]]
            for reading in made:
                messages.tell("%s", reading)
            self._write(made)
        self._runs += 1
        self._pace.passed(read=bool(found))

    def _reading(self, name: str, found: Any) -> Reading:
        each, counts = found["read"][name], found["counts"][name]
        whole = tally.read([each["tally"]], self._names[name])
        since = whole.since(self._before.get(name))
        self._before[name] = whole
        underflow = {
            n: exponents.underflow(counts[n], "float16")
            for n in self._names[name]
            if n in counts
        }
        scale, skipped = float(each["scale"]), int(each["skipped_steps"])
        return Reading(self._runs, name, scale, skipped, since, "float16", underflow)

    def _write(self, made: list[Reading]) -> None:
        if not self._log_dir:
            return
        with tf.__internal__.eager_context.eager_mode():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._log_dir)
            with self._writer.as_default():
                for reading in made:
                    readings.write(reading)
            self._writer.flush()


def _operations(run_context: Any) -> list[Any]:
    """The operations that the user's run asks for."""
    graph = run_context.session.graph
    asked = tf.nest.flatten(run_context.original_args.fetches, expand_composites=True)
    found = [graph.as_graph_element(each) for each in asked]
    return [getattr(each, "op", each) for each in found]


def _tensor(graph: Any, edge: tuple[str, int]) -> Any:
    return graph.get_tensor_by_name(f"{edge[0]}:{edge[1]}")
