"""Ridge regression: the classes of images as a linear function of their pixels.

Closed form, no iterations. Sums over the rows are all that is kept of the data, so that
a large set may come in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import linalg

# Of the mean square of a pixel; which of them is best is the caller's choice.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)


def fit(
    pieces: Iterable[tuple[np.ndarray, np.ndarray]],
    classes: int,
    strengths: Sequence[float] = STRENGTHS,
) -> list[np.ndarray]:
    """Returns a matrix [features + 1, classes] for each strength; see `scores`.

    Args:
      pieces: features [rows, ...] and labels [rows], as many times as there are pieces.
      classes: number of labels.
      strengths: of the penalty on the weights (not on the constant).
    """
    squares: np.ndarray | float = 0.0
    products: np.ndarray | float = 0.0
    for x, y in pieces:
        rows = _with_one(x)
        squares = squares + rows.T @ rows
        products = products + rows.T @ np.eye(classes)[y]
    assert isinstance(squares, np.ndarray), "there is no piece"
    penalty = np.diag(squares).mean() * np.eye(len(squares))
    penalty[-1, -1] = 0.0
    return [
        linalg.solve(squares + strength * penalty, products, assume_a="pos")
        for strength in strengths
    ]


def scores(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A score for each class, [rows, classes], of features [rows, ...]."""
    return _with_one(x) @ matrix


def _with_one(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1).astype(np.float64)
    return np.concatenate([flat, np.ones((len(x), 1))], axis=1)
