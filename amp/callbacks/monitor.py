"""`Monitor`: reads the scalers now and then, for the log and for TensorBoard.

Used by the Keras callback and by `monitor_loss_scale`. Which steps are observed, and
how, is in `integration.observing.step_probes`; between two readings nothing runs.
"""

from __future__ import annotations

import collections
import os
import weakref
from typing import Any

import tensorflow as tf

from amp import messages
from amp.callbacks import readings
from amp.callbacks.pace import Pace
from amp.callbacks.readings import Reading
from amp.integration.observing import step_probes, step_variants
from amp.integration.observing.samples import Sample
from amp.integration.process import PROCESS
from amp.loss_scaling import current, exponents, tally
from amp.loss_scaling.tally import Tally


class Monitor:
    """Reads the scalers of the process every so many steps.

    Args:
      log_dir: where to write for TensorBoard, "" or None to write nothing.
      every: the steps from one reading to the next; by default as `Pace` has it.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = "", every: int | None = None
    ) -> None:
        self._pace = Pace(every)
        self._newest = -1  # the step that was read last
        self._told: int | None = None  # the step that was told of last
        self._log_dir = os.fspath(log_dir or "")
        self._writer: Any = None
        self._open()
        self._samples: collections.deque[Sample] = collections.deque(maxlen=100)
        # By the scaler, as a later one may have the name of one that is gone.
        self._before: weakref.WeakKeyDictionary[Any, Tally] = (
            weakref.WeakKeyDictionary()
        )
        self._drawn: set[str] = set()  # functions whose graph is written

    @property
    def every(self) -> int:
        """The steps from one reading to the next; one call in so many is observed."""
        return self._pace.every

    def start(self) -> None:
        """Has steps observed from now on."""
        self._open()
        self._pace.start()
        step_probes.watch(self)

    def _open(self) -> None:
        """Opens the files to write to, if there are any and they are not open."""
        if self._log_dir and self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def stop(self) -> None:
        """Has no step observed any more, and closes the files."""
        step_probes.unwatch(self)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def receive(self, sample: Sample) -> None:
        """Takes what a step let observe."""
        self._samples.append(sample)

    def step(self, number: int) -> list[Reading]:
        """Is told of a step; reads, writes and logs after every so many.

        Args:
          number: of the step, from 0; of the last one, where several are one call.
        """
        before = number - 1 if self._told is None else self._told
        due, self._told = number // self.every != before // self.every, number
        found = self.read(number) if due else []
        self._pace.passed(read=due)
        return found

    def finish(self, number: int) -> None:
        """Reads what came since the last reading, and has no step observed any more.

        Args:
          number: of the last step.
        """
        if number != self._newest:
            self.read(number)
        self.stop()

    def read(self, number: int) -> list[Reading]:
        """Reads all scalers, writes and logs."""
        self._newest = number
        counts: dict[str, Any] = {}
        functions = []
        while self._samples:
            sample = self._samples.popleft()
            counts.update(sample.counts())
            functions.append(sample.function)
        found = [self._reading(number, s, counts) for s in current().scalers]
        for reading in found:
            messages.tell("%s", reading)
        if self._writer is not None:
            with self._writer.as_default():
                for reading in found:
                    readings.write(reading)
                self._draw(functions)
            self._writer.flush()
        return found

    def _reading(self, number: int, scaler: Any, counts: dict[str, Any]) -> Reading:
        with tf.init_scope():
            values = [v.numpy() for v in scaler.copies("tally")]
            scale = float(scaler.copies("scale")[0].numpy())
            skipped = int(scaler.copies("skipped_steps")[0].numpy())
        whole = tally.read(values, scaler.names)
        since = whole.since(self._before.get(scaler))
        self._before[scaler] = whole
        labels = {n: scaler.label(i) for i, n in enumerate(scaler.names)}
        underflow = {
            name: exponents.underflow(counts[label], "float16")
            for name, label in labels.items()
            if label in counts
        }
        return Reading(number, scaler.name, scale, skipped, since, "float16", underflow)

    def _draw(self, functions: list[str]) -> None:
        """Writes the graphs of the functions that ran, twins mostly, once each."""
        for name in functions:
            if name not in self._drawn:
                self._drawn.add(name)
                graph = step_variants.graph_of(name)
                if graph is not None:
                    tf.summary.graph(graph)


# So many loops are watched, the newest: nothing says that one has ended.
MOST = 16


def monitor_loss_scale(
    step: int, log_dir: str | os.PathLike[str] | None = "", every: int | None = None
) -> list[Reading]:
    """Watches the loss scale of a training loop; to be called once after each step.

    ::

        for number, batch in enumerate(data):
            train_step(batch)
            amp.callbacks.monitor_loss_scale(number, "logs")

    Args:
      step: the number of the step, from 0; also a variable or tensor that holds it, as
        an optimizer's `iterations`.
      log_dir: where to write for TensorBoard; by default nothing is written.
      every: the steps from one reading to the next; by default 100, or as many as keep
        a reading under 3 % of the time.

    Returns:
      A reading of each scaler at the steps that are read, else [].
    """
    key = (os.fspath(log_dir or ""), every)
    monitor = PROCESS.loops.get(key)
    if monitor is None:
        monitor = PROCESS.loops[key] = Monitor(log_dir, every)
        monitor.start()
        for oldest in list(PROCESS.loops)[:-MOST]:
            PROCESS.loops.pop(oldest).stop()
    return monitor.step(int(step))
