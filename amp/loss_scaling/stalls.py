"""Warns, once for each scaler, that the updates of its variables are always skipped.

A job whose gradients overflow at every step stands still without an error. Each scaler
counts (`Scaler.stalled`), inside the step and on the device. Outside sessions one
daemon thread reads the counts now and then, and once more when the process ends, so no
step waits for the host. In a session graph the step that reaches the limit prints. No
scale is moved here, and without a scaler nothing runs.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.loss_scaling import branches
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LossScale, Where

_LOG = logging.getLogger("amp")  # Python's own, without a handler of ours
# A scale that starts at 2**15 fits most jobs after 15 halvings.
LIMIT = 20
PERIOD = 10.0  # seconds between two readings
_NAMED = 3


def count(rule: LossScale, scale: Any, stalled: Any, step: tuple[Any, Where]) -> Any:
    """Returns how many overflows look like a stall, after one gradient call.

    ::

        if stalled >= LIMIT: stalled                    # the warning is given, or due
        elif not finite:     stalled + 1
        elif at the floor:   stalled                    # a good step changes nothing
        else:                0

    Args:
      rule: the settings.
      scale: the scale that the call used, float32, shape ().
      stalled: the count before, int64, shape ().
      step: whether the gradients were finite, and the function to select with.
    """
    finite, where = step
    good = stalled * 0
    if rule.bounds is not None:
        good = where(scale <= rule.bounds[0], stalled, good)
    counted = where(finite, good, stalled + 1)
    return where(stalled >= LIMIT, stalled, counted)


def text(names: Sequence[str], scale: str) -> str:
    """Returns the warning for a scaler whose variables have these names."""
    first = ", ".join(name.partition(":")[0] for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"amp: training may stand still: {LIMIT} updates were skipped because the "
        f"gradients of {first}{more} were not finite; {scale}. If the loss itself is "
        "finite, scale it down (a mean instead of a sum) or give DynamicLossScale a "
        "lower minimum; otherwise look for the first NaN without mixed precision"
    )


def printed(old: tf.Tensor, new: tf.Tensor, names: Sequence[str]) -> Any:
    """Returns an operation that prints in the step that reaches the limit.

    For session graphs, whose variables only a session can read. It prints on the CPU
    of the task: no GPU has a kernel for that, and a session refuses a graph that asks
    for one.
    """
    said = text(names, "see amp.loss_scaling.current().scale")

    def say() -> tf.Tensor:
        with tf.device("/device:CPU:0"):
            shown = tf.print(said, output_stream=sys.stderr)
        with tf.control_dependencies([shown]):
            return tf.constant(True)

    reached = tf.logical_and(old < LIMIT, new >= LIMIT)
    return branches.cond(reached, say, lambda: tf.constant(False))


@dataclasses.dataclass(frozen=True, slots=True)
class _Watched:
    scaler: weakref.ref[Any]
    names: tuple[str, ...]


class _Watcher:
    """The thread that reads the counts; the first scaler to watch starts it."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.thread: threading.Thread | None = None
        self.process = os.getpid()

    def start(self) -> None:
        if self.thread is None and not self.ends.is_set():
            self.thread = threading.Thread(
                target=self._run, name="amp-stalls", daemon=True
            )
            self.thread.start()
            atexit.register(self.stop)

    def _run(self) -> None:
        while not self.ends.wait(PERIOD):
            look()

    def stop(self) -> None:
        """Reads a last time. Does nothing in a fork, which has no such thread."""
        if os.getpid() != self.process or self.thread is None:
            return
        self.ends.set()
        self.thread.join(PERIOD)
        if not self.thread.is_alive():
            look()


_WATCHER = _Watcher()


def watch(scaler: Any, sources: Sequence[tf.Variable]) -> None:
    """Adds a scaler to those watched; a weak reference is kept."""
    names = tuple(source.name for source in sources)
    key = id(scaler)
    SCALING.watched[key] = _Watched(weakref.ref(scaler), names)
    forget = SCALING.watched.pop
    weakref.finalize(scaler, forget, key, None).atexit = False
    _WATCHER.start()


def look() -> None:
    """Reads every count, and warns of each scaler that has reached the limit."""
    for key, watched in list(SCALING.watched.items()):
        scaler = watched.scaler()
        # A device in an error state is the job's to report.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            if scaler is None or int(scaler.copies("stalled")[0].numpy()) < LIMIT:
                continue
            scale = float(scaler.copies("scale")[0].numpy())
            SCALING.watched.pop(key, None)
            _LOG.warning("%s", text(watched.names, f"the loss scale is {scale:g}"))
