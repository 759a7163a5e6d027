"""Copies the state of scalers to a NumPy array, and sets scalers from such an array.

For Keras weight files, by `state.kept` and `state.give_back`, which hold a lock while
rows that wait are read or changed, and only then. No files, no gradients, no registry:
the caller passes the scalers. Overflows that no optimizer has answered yet are not
copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from amp.errors import CheckpointError
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LARGEST, SMALLEST
from amp.loss_scaling.scaler import Scaler

# One row per scaler, float64, which holds each of these exactly.
Numbers: TypeAlias = NDArray[np.float64]
FIELDS = ("scale", "good_steps", "bad_steps", "skipped_steps")
_References: TypeAlias = tuple[weakref.ref[Any], ...]

# Variables whose scalers do not exist yet, and the rows that those will start from.
_Waiting: TypeAlias = tuple[_References, list[NDArray[np.float64]]]


def kept(scalers: Sequence[Scaler], waiting: Sequence[Any]) -> Numbers:
    """Returns the state of scalers, float64, shape (scalers, FIELDS).

    Args:
      scalers: those there are, the oldest first.
      waiting: the rows of those that are made later.
    """
    rows: list[Any] = [[getattr(s, f).numpy() for f in FIELDS] for s in scalers]
    return np.array([*rows, *waiting], np.float64).reshape(-1, len(FIELDS))


def checked(numbers: Any, where: str) -> Numbers:
    """Returns numbers read from a file, after checking that `kept` may have made them.

    Raises:
      CheckpointError: they are of another shape or type, or out of range.
    """
    found = np.asarray(numbers)
    if found.dtype.kind not in "fiu" or found.shape[1:] != (len(FIELDS),):
        raise _damaged(f"{found.dtype}, shape {found.shape}", where)
    scale, counts = found[:, 0], found[:, 1:]
    fits = np.all((scale >= SMALLEST) & (scale <= LARGEST))
    if not fits or not np.all(
        (counts >= 0) & (counts < 2**31) & (np.floor(counts) == counts)
    ):
        raise _damaged(str(found.tolist()), where)
    return found.astype(np.float64)


def _damaged(found: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"a loss-scale state that cannot be read: {found}",
        where=where,
        allowed=f"a row for each scaler with a positive scale and three counts "
        f"({', '.join(FIELDS)})",
        remedy="nothing has to be done: the loss scale goes on as it is, and saving "
        "the weights again replaces the entry",
    )


def give_back(scaler: Scaler, row: NDArray[np.float64]) -> None:
    """Sets a scaler to a row of what `kept` returned."""
    with tf.init_scope():
        for field, value in zip(FIELDS, row.tolist(), strict=True):
            scaler.restore(field, tf.constant(value, tf.float64))


def waiting(variables: Sequence[tf.Variable]) -> list[NDArray[np.float64]]:
    """Returns the rows that wait for scalers of these variables."""
    meant = (each for each in _waiting() if _meant(each[0], variables))
    return [row for each in meant for row in each[1]]


def keep_waiting(
    variables: Sequence[tf.Variable], rows: list[NDArray[np.float64]]
) -> None:
    """Has rows wait for scalers of these variables, in place of those that wait."""
    waits = _waiting()
    waits[:] = [each for each in waits if not _meant(each[0], variables)]
    if rows:
        waits.append((tuple(weakref.ref(v) for v in variables), rows))


def taken(sources: Sequence[tf.Variable]) -> NDArray[np.float64] | None:
    """Returns the row that waits for a scaler that was just made, None without one."""
    waits, row = _waiting(), None
    for references, rows in waits:
        if _meant(references, sources):
            row = rows.pop(0)
            break
    waits[:] = [e for e in waits if e[1] and any(r() is not None for r in e[0])]
    return row


def _waiting() -> list[_Waiting]:
    return SCALING.waiting


def _meant(references: _References, variables: Sequence[tf.Variable]) -> bool:
    ids = {id(v) for v in variables}
    living = (reference() for reference in references)
    return any(v is not None and id(v) in ids for v in living)
