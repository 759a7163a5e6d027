"""Gradients of one batch in a setting and in float32: histograms, and the error.

Looks only: the caller puts back what a forward pass changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LOWEST, HIGHEST = -60, 30  # exponents beyond are counted with these


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


def error(mixed: Sequence[np.ndarray], float32: Sequence[np.ndarray]) -> float | None:
    """The median over variables of the relative error of a gradient.

    Of one variable it is |mixed - float32| / |float32|, Euclidean norms; a variable
    whose float32 gradient is 0 is left out. None if a gradient is not finite.
    """
    found = []
    for ours, exact in zip(mixed, float32, strict=True):
        wide = exact.astype(np.float64)
        size = np.linalg.norm(wide)
        if not (np.isfinite(ours).all() and np.isfinite(size)):
            return None
        if size:
            found.append(float(np.linalg.norm(ours.astype(np.float64) - wide) / size))
    return float(np.median(found)) if found else None


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
