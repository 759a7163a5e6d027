"""`LossScaleMonitor`: the Keras callback. What it shows is not made here."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from amp.callbacks.monitor import Monitor

_Callback: Any = tf.keras.callbacks.Callback


class LossScaleMonitor(_Callback):  # type: ignore[misc]
    """Logs the loss scale during `fit`, and writes it for TensorBoard.

    Args:
      log_dir: where to write for TensorBoard; by default nothing is written.
      every: the batches from one reading to the next; by default 100, or as many as
        keep a reading under 3 % of the time.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = "", every: int | None = None
    ) -> None:
        super().__init__()
        self._log_dir, self._every = os.fspath(log_dir or ""), every
        self._monitor: Monitor | None = None
        self._batches = self._begun = 0  # so far, and when the epoch began

    def on_train_begin(self, logs: Any = None) -> None:
        """Has steps observed."""
        self._monitor = self._monitor or Monitor(self._log_dir, self._every)
        self._monitor.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes when it was: Keras counts the batches of each epoch."""
        self._begun = self._batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads after every so many batches, of which several may be one step."""
        self._batches = self._begun + batch + 1
        if self._monitor is not None:
            self._monitor.step(self._batches - 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Reads what came since the last reading."""
        if self._monitor is not None:
            self._monitor.finish(self._batches - 1)
