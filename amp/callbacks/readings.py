"""`Reading`: what a monitor read of one scaler, as text and for TensorBoard.

Nothing is read here: `monitor` and `session_hook` do that, the first from variables,
the other from what a session fetched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amp.loss_scaling.exponents import LINES, Underflow
from amp.loss_scaling.tally import Tally

# tensorflow.DataClass of what each plugin of TensorBoard reads (summary.proto).
_CLASSES = {"scalars": 1, "histograms": 2, "text": 2, "images": 3}
_WORST = 3  # variables in a line of the log
_WIDTH, _HEIGHT = 8, 12  # pixels of a cell
_RANGE = range(-40, 24)  # exponents that a picture shows


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One scaler at one step.

    Attributes:
      step: the user's number of the step.
      scaler: what the scaler is called.
      scale: the loss scale.
      skipped: updates that were left out so far.
      since: gradient calls since the reading before, and in how many of them the
        gradient of each variable was not finite.
      dtype: the 16-bit type that `underflow` is of.
      underflow: of the scaled gradient of each variable at one step; of no variable
        where no step could be observed.
    """

    step: int
    scaler: str
    scale: float
    skipped: int
    since: Tally
    dtype: str
    underflow: Mapping[str, Underflow]

    @property
    def first_not_finite(self) -> str:
        """The variable whose gradient overflowed first in a backward pass, else ""."""
        return next(iter(self.since.names), "")

    def __str__(self) -> str:
        parts = [
            f"step {self.step}: loss scale {self.scale:g} ({self.scaler})",
            f"{self.skipped} updates skipped",
        ]
        if self.first_not_finite:
            name = self.first_not_finite
            times = max(self.since.overflows.values())
            parts.append(
                f"gradients not finite in at least {times} of {self.since.calls} "
                f"calls, {name} first"
            )
        worst = sorted(
            self.underflow.items(), key=lambda item: -item[1].zero - item[1].denormal
        )
        parts += [
            f"{name} {each.zero:.0%} zero and {each.denormal:.0%} denormal in "
            f"{self.dtype}"
            for name, each in worst[:_WORST]
            if each.zero + each.denormal > 0
        ]
        return "; ".join(parts)


def write(reading: Reading) -> None:
    """Writes a reading for TensorBoard, into the writer that is the default one.

    All of it by one operation, as each takes about a third of a millisecond.
    TensorBoard itself need not be installed for that.
    """
    summary = summarized(reading)
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), reading.step)


def summarized(reading: Reading) -> Any:
    """A reading as TensorFlow's message `Summary`, in the forms that plugins read."""
    summary, at = tf.compat.v1.Summary(), f"amp/{reading.scaler}"
    _scalar(summary, f"{at}/loss_scale", reading.scale)
    _scalar(summary, f"{at}/skipped_steps", reading.skipped)
    for name, count in reading.since.overflows.items():
        _scalar(summary, f"{at}/overflows/{name}", count)
    if reading.first_not_finite:
        first = [reading.first_not_finite.encode()]
        _add(summary, "text", f"{at}/first_gradient_not_finite", first)
    for name, each in reading.underflow.items():
        _scalar(summary, f"{at}/underflow_to_zero/{name}", each.zero)
        _scalar(summary, f"{at}/underflow_denormal/{name}", each.denormal)
        bits = bits_above(each, reading.dtype)
        _add(summary, "histograms", f"{at}/bits_above_underflow/{name}", bits)
    if reading.underflow:
        shown = picture(list(reading.underflow.values()), reading.dtype)
        sizes = [str(size).encode() for size in (shown.shape[1], shown.shape[0])]
        image = [*sizes, tf.io.encode_png(shown).numpy()]
        _add(summary, "images", f"{at}/exponents", image)
    return summary


def _scalar(summary: Any, tag: str, value: float) -> None:
    _add(summary, "scalars", tag, np.float32(value))


def _add(summary: Any, plugin: str, tag: str, value: Any) -> None:
    """Adds a tensor in the form in which a plugin of TensorBoard reads it."""
    added = summary.value.add(tag=tag, tensor=tf.make_tensor_proto(value))
    added.metadata.plugin_data.plugin_name = plugin
    added.metadata.data_class = _CLASSES[plugin]


def bits_above(underflow: Underflow, dtype: str) -> Any:
    """The exponents of a gradient as a histogram, counted from the underflow line.

    0 is the smallest normal number of the 16-bit type; what is below loses digits.

    Returns:
      float64, shape (exponents, 3): from, to, elements.
    """
    normal, _ = LINES[dtype]
    rows = [(e - normal, e - normal + 1, n) for e, n in underflow.exponents]
    return np.array(rows, np.float64).reshape([-1, 3])


def picture(rows: Sequence[Underflow], dtype: str) -> Any:
    """The exponents of all gradients as a picture, a row per variable.

    Blue is how many elements have an exponent, from 2**-40 on the left to 2**23; the
    red line is the 16-bit type's smallest normal number, the grey one its smallest.

    Returns:
      uint8, shape (height, width, 3).
    """
    shown = np.full((len(rows) * _HEIGHT, len(_RANGE) * _WIDTH, 3), 255, np.uint8)
    for row, underflow in enumerate(rows):
        most = max((count for _, count in underflow.exponents), default=1.0)
        for exponent, count in underflow.exponents:
            column = min(max(exponent, _RANGE[0]), _RANGE[-1]) - _RANGE[0]
            tall = max(1, round((_HEIGHT - 1) * count / most))
            bottom, left = (row + 1) * _HEIGHT - 1, column * _WIDTH
            shown[bottom - tall : bottom, left : left + _WIDTH - 1] = (60, 110, 200)
    for exponent, colour in zip(LINES[dtype], ((220, 40, 40), (130,) * 3), strict=True):
        if exponent in _RANGE:
            shown[:, (exponent - _RANGE[0]) * _WIDTH - 1] = colour
    return shown
