"""What checkpoints hold of a scaler: a few numbers, which any other scaler can take.

Nothing is known here of files or of when they are read; `session_savers` and
TensorFlow's own checkpoints ask. Flags of single variables (`overflow`, `left_out`) are
not saved: they belong to a gradient that no checkpoint holds, and their shape would
keep a checkpoint from a job that trains one layer more.

In files the counts `good_steps` and `bad_steps` are int32. In memory they are int64,
because TensorFlow keeps int32 variables on the host, where a step compiled for a GPU
cannot reach them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import tensorflow as tf

from amp import messages
from amp.loss_scaling.scale import LossScale

VALUE = "VARIABLE_VALUE"  # TensorFlow's name of a variable's one entry
SAVED = {
    "scale": tf.float32,
    "good_steps": tf.int32,
    "bad_steps": tf.int32,
    "skipped_steps": tf.int64,
}
# Entries of earlier checkpoints, read and dropped.
DROPPED = {"overflow": tf.int32, "left_out": tf.int32}


class Entry(tf.__internal__.tracking.Trackable):  # type: ignore[misc]
    """One entry of an object-based checkpoint.

    Args:
      read: returns the tensor to save; its dtype is that of the file.
      write: takes the tensor that was restored, whatever its shape; may return an
        operation to run.
    """

    def __init__(
        self, read: Callable[[], tf.Tensor], write: Callable[[tf.Tensor], Any]
    ) -> None:
        self._read, self._write = read, write

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {VALUE: self._read()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        return self._write(restored[VALUE])

    def _copy_trackable_to_cpu(self, object_map: MutableMapping[Entry, Entry]) -> None:
        """Copies the value now; a save in the background writes the copy, later.

        TensorFlow calls it for every save, the first time outside of its function.
        """
        if self not in object_map:
            with tf.device("CPU:0"):
                held = tf.Variable(self._read(), trainable=False)
            object_map[self] = Entry(held.read_value, held.assign)
        object_map[self]._write(self._read())


def dropped(field: str) -> Entry:
    """Returns an entry for a value of an earlier version: it is read and dropped."""
    return Entry(lambda: tf.zeros([], DROPPED[field]), lambda value: None)


def to_file(field: str, value: tf.Tensor) -> tf.Tensor:
    """Returns what is written of a variable: its value in the dtype of files."""
    dtype = SAVED[field]
    return tf.cast(tf.minimum(value, dtype.max), dtype)


def from_file(
    rule: LossScale, field: str, value: tf.Tensor, variable: tf.Variable
) -> tf.Tensor:
    """Returns what a variable holds after a restore.

    A scale is kept between the rule's minimum and maximum, and a rule that does not
    move its scale keeps its own. What is not a number at all is left out.

    Args:
      rule: the settings of the scaler that restores.
      field: which of its variables.
      value: what was read, of any shape.
      variable: the variable itself.
    """
    old, bounds = variable.read_value(), rule.bounds
    if field != "skipped_steps" and bounds is None:
        return old
    if value.shape.rank not in (0, None):
        skipped(field, f"shape {value.shape}")
        return old
    # Several devices restore inside a function, where no shape is known before it runs.
    one = tf.reduce_max(tf.reshape(tf.cast(value, variable.dtype), [-1]))
    if bounds is not None and field == "scale":
        fits = tf.math.is_finite(one)
        one = tf.clip_by_value(one, *bounds)
    else:
        fits = one >= 0
    return tf.where(tf.logical_and(fits, tf.equal(tf.size(value), 1)), one, old)


def skipped(entry: str, found: str) -> None:
    """Logs, once in a process, that an entry of a checkpoint is not restored."""
    messages.log_once(
        "the loss-scale entry %s of a checkpoint is left out: it has %s, and a number "
        "was expected. The loss scale goes on as it is; all else is restored.",
        entry,
        found,
    )
