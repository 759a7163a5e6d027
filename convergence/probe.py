"""Gradients and updates of one batch in a setting and in float32, as NumPy arrays.

Errors, what was lost to 0 and to denormals, and histograms. Looks only: the caller puts
back what a step changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LOWEST, HIGHEST = -60, 30  # exponents beyond are counted with these
# Of the norm of all gradients: what rounding makes of a gradient that is exactly 0.
NEGLIGIBLE = 2.0**-11


@contextlib.contextmanager
def recording() -> Iterator[list[tuple[str, tf.Tensor]]]:
    """Collects what every Keras layer returns while a graph is being traced.

    Only layers that hold no others, and tensors of that graph alone: what a loop
    computes inside has no gradient outside.
    """
    found: list[tuple[str, tf.Tensor]] = []
    original = keras.layers.Layer.__call__

    def call(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        same = isinstance(result, tf.Tensor) and result.dtype == tf.float32
        if same and result.graph is graph and not list(self._layers):
            found.append((self.name, result))
        return result

    graph = tf.compat.v1.get_default_graph()
    keras.layers.Layer.__call__ = call
    try:
        yield found
    finally:
        keras.layers.Layer.__call__ = original


def dense(gradient: Any) -> tf.Tensor:
    """A gradient as one tensor; of slices, the values of each row summed."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    flat = tf.reshape(gradient.indices, [-1])
    rows = tf.unique(flat, out_idx=tf.int32)
    values = tf.reshape(gradient.values, [tf.size(flat), -1])
    return tf.math.unsorted_segment_sum(values, rows.idx, tf.size(rows.y))


def histogram(values: np.ndarray) -> dict[str, Any]:
    """How many values have which exponent.

    Returns:
      "lowest", the exponent floor(log2 |x|) of the first of "counts"; "zeros" and
      "nonfinite", which are not in them.
    """
    values = np.abs(values.reshape(-1))
    finite = np.isfinite(values)
    kept = values[finite & (values > 0)]
    exponents = np.clip(np.frexp(kept)[1] - 1, LOWEST, HIGHEST)
    counts = np.bincount(exponents - LOWEST, minlength=1)
    first = int(np.argmax(counts > 0)) if counts.any() else 0
    return {
        "lowest": LOWEST + first,
        "counts": counts[first:].tolist() if counts.any() else [],
        "zeros": int((values == 0).sum()),
        "nonfinite": int((~finite).sum()),
    }


def histograms(
    names: Sequence[str], gradients: Sequence[np.ndarray]
) -> dict[str, dict[str, Any]]:
    """A histogram for each name; what has one name is counted together."""
    together: dict[str, list[np.ndarray]] = {}
    for name, gradient in zip(names, gradients, strict=True):
        together.setdefault(name, []).append(gradient.reshape(-1))
    return {n: histogram(np.concatenate(g)) for n, g in together.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What one step computed: of each variable, in order.

    Attributes:
      gradients: NumPy arrays.
      updates: weights after the step minus before.
      overflow: whether loss scaling left the update out.
    """

    gradients: list[np.ndarray]
    updates: list[np.ndarray]
    overflow: bool


def compared(
    names: Sequence[str],
    ours: Sequence[np.ndarray],
    exact: Sequence[np.ndarray],
    noisy: Sequence[Sequence[np.ndarray]],
    spacings: Sequence[float] = (),
) -> dict[str, list[float | None]]:
    """The observations that `gradient_rule` judges: error, noise, share, even share.

    A variable for which float32 has exactly 0 is left out, unless `ours` is not small.

    Args:
      names: of variables.
      ours: gradients or updates in the setting on trial.
      exact: the same in float32.
      noisy: the same in float32, at weights that are slightly off, once or more; noise
        is the largest error of these.
      spacings: of updates, what `spacing` says of the weights: noise is no less, for
        what is smaller is lost when weights are rounded to float32.
    """
    whole = float(np.sqrt(sum(_norm(x) ** 2 for x in exact)))
    moving = max(sum(np.count_nonzero(x) for x in exact), 1)
    coarse = spacings or [0.0] * len(names)
    found: dict[str, list[float | None]] = {}
    off = zip(*noisy, strict=True)  # of each variable, every draw
    for name, a, b, draws, least in zip(names, ours, exact, off, coarse, strict=True):
        size = _norm(b)
        if size:
            error, *noise = (_norm(_wide(x) - _wide(b)) for x in (a, *draws))
            even = float(np.sqrt(np.count_nonzero(b) / moving))
            told = (error / size, max(*noise, least) / size, size / whole, even)
            found[name] = [_short(x) for x in told]
        elif not _norm(a) <= max(NEGLIGIBLE * whole, least):
            found[name] = [None, 0.0, 0.0, 0.0]
    return found


def above(
    names: Sequence[str], gradients: Sequence[np.ndarray], share: float
) -> dict[str, np.ndarray]:
    """Which values of each gradient are no less than a share of its mean square's root.

    Returns:
      Masks by name. At least one value of each is chosen.
    """
    masks = {}
    for name, gradient in zip(names, gradients, strict=True):
        sizes = np.abs(_wide(gradient))
        masks[name] = sizes >= share * np.sqrt(np.mean(sizes**2))
    return masks


def spacing(weights: np.ndarray) -> float:
    """The norm of the distances from each weight to the next number in its type."""
    return _norm(np.spacing(np.abs(weights)))


def lost(
    names: Sequence[str],
    ours: Sequence[np.ndarray],
    exact: Sequence[np.ndarray],
    smallest: Sequence[float],
) -> dict[str, list[float]]:
    """The shares of a gradient's values that became 0, and that became denormals.

    Of the values that are not 0 in float32.

    Args:
      names: of variables.
      ours: unscaled gradients in the setting on trial.
      exact: gradients in float32.
      smallest: of each variable, the type's smallest normal number over the scale.
    """
    found = {}
    for name, a, b, least in zip(names, ours, exact, smallest, strict=True):
        there = b != 0
        total = max(int(there.sum()), 1)
        small = there & (np.abs(a) < least)
        zeros = int((small & (a == 0)).sum())
        denormals = int(small.sum()) - zeros
        found[name] = [round(zeros / total, 5), round(denormals / total, 5)]
    return found


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(_wide(values)))


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if np.isfinite(value) else None


def share_below(held: Mapping[str, Any], exponent: float) -> float:
    """The share of nonzero values of a histogram that are under 2^exponent.

    Args:
      held: what `histogram` gives.
      exponent: a whole one is exact; others are rounded down.
    """
    counts = np.array(held["counts"], float)
    if not counts.sum():
        return 0.0
    exponents = held["lowest"] + np.arange(len(counts))
    return float(counts[exponents < np.floor(exponent)].sum() / counts.sum())
