"""Copies the state of scalers to plain numbers, and sets scalers from such numbers.

As an array for Keras weight files, by `state.kept` and `state.give_back`, which hold a
lock while rows that wait are read or changed, and only then; as dictionaries for users,
by `control` and `group`. No files, no gradients, no registry:
the caller passes the scalers. Overflows that no optimizer has answered yet are not
copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from amp import messages
from amp.errors import CheckpointError
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import LARGEST, SMALLEST, is_finite

# One row per scaler, float64, which holds each of these exactly.
Numbers: TypeAlias = NDArray[np.float64]
FIELDS = ("scale", "good_steps", "bad_steps", "skipped_steps")
_References: TypeAlias = tuple[weakref.ref[Any], ...]

# Variables whose scalers do not exist yet, and the rows that those will start from.
_Waiting: TypeAlias = tuple[_References, list[NDArray[np.float64]]]


def kept(scalers: Sequence[Any], waiting: Sequence[Any]) -> Numbers:
    """Returns the state of scalers, float64, shape (scalers, FIELDS).

    Args:
      scalers: those there are, the oldest first.
      waiting: the rows of those that are made later.
    """
    rows: list[Any] = [list(state_of(s).values()) for s in scalers]
    return np.array([*rows, *waiting], np.float64).reshape(-1, len(FIELDS))


def checked(numbers: Any, where: str) -> Numbers:
    """Returns numbers read from a file, after checking that `kept` may have made them.

    Raises:
      CheckpointError: they are of another shape or type, or out of range.
    """
    found = np.asarray(numbers)
    if found.dtype.kind not in "fiu" or found.shape[1:] != (len(FIELDS),):
        raise _damaged(f"{found.dtype}, shape {found.shape}", where)
    if not _in_range(found):
        raise _damaged(str(found.tolist()), where)
    return found.astype(np.float64)


def _is_number(value: Any) -> bool:
    """Whether a float64 may hold a value; no flag is a number."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return number and is_finite(value)


def _in_range(rows: NDArray[Any]) -> bool:
    scale, counts = rows[:, 0], rows[:, 1:]
    whole = (counts >= 0) & (counts < 2**31) & (np.floor(counts) == counts)
    return bool(np.all((scale >= SMALLEST) & (scale <= LARGEST)) and np.all(whole))


def _damaged(found: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"a loss-scale state that cannot be read: {found}",
        where=where,
        allowed=f"a row for each scaler with a positive scale and three counts "
        f"({', '.join(FIELDS)})",
        remedy="nothing has to be done: the loss scale goes on as it is, and saving "
        "the weights again replaces the entry",
    )


def state_of(scaler: Any) -> dict[str, float | int]:
    """Returns the state of a scaler that is not one of a session graph."""
    return as_state([scaler.copies(f)[0].numpy().item() for f in FIELDS])


def as_state(row: Sequence[float]) -> dict[str, float | int]:
    """Returns a row as a dictionary: the scale is a float, the counts are integers."""
    scale, *counts = row
    return dict(zip(FIELDS, [float(scale), *map(int, counts)], strict=True))


def row_of(state: Any, where: str) -> NDArray[np.float64]:
    """Returns the row that `as_state` made this dictionary from.

    Raises:
      CheckpointError: it made none like it.
    """
    row = np.zeros(len(FIELDS))  # is not in range
    if isinstance(state, Mapping) and set(state) == set(FIELDS):
        numbers = [state[field] for field in FIELDS]
        if all(map(_is_number, numbers)):
            row = np.array(numbers, np.float64)
    if not _in_range(row[None]):
        raise CheckpointError(
            f"a loss-scale state that cannot be read: {state!r}",
            where=where,
            allowed=f"a dictionary of {', '.join(FIELDS)}: a positive number and three "
            "counts",
            remedy="give what `state_dict` returned; the loss scale is as it was",
        )
    return row


def give_back(scaler: Any, row: NDArray[np.float64]) -> None:
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


def by_name(states: Any) -> Mapping[str, Any]:
    """Returns states by the names of scalers, after checking that they are that.

    Raises:
      CheckpointError: they are not.
    """
    if isinstance(states, Mapping) and all(isinstance(name, str) for name in states):
        return states
    raise CheckpointError(
        f"{states!r} as the states of scalers",
        where="load_state_dict",
        allowed="a dictionary: for each name of a scaler, its state",
        remedy="give what `amp.loss_scaling.current().state_dict()` returned",
    )


def unknown(names: Sequence[str], known: Sequence[str]) -> CheckpointError:
    """Returns the error for states of scalers that a session graph does not have."""
    return CheckpointError(
        f"states of loss scalers that this graph does not have: {', '.join(names)}",
        where="load_state_dict, in a session graph",
        allowed=f"the names of its scalers: {', '.join(known) or 'there is none'}",
        remedy="load the states once the graph is built",
    )


def taken_by_name(name: str) -> NDArray[np.float64] | None:
    """Returns the row that waits for a scaler of that name, which was just made.

    If others wait and this one does not, the log says so, once for each name.
    """
    row = SCALING.named.pop(name, None)
    if row is not None:
        return np.array(row)
    if SCALING.named:
        messages.log_once(
            "the loss scale %r starts afresh: the states that were loaded and still "
            "wait are those of %s",
            name,
            ", ".join(map(repr, SCALING.named)),
        )
    return None


def _waiting() -> list[_Waiting]:
    return SCALING.waiting


def _meant(references: _References, variables: Sequence[tf.Variable]) -> bool:
    ids = {id(v) for v in variables}
    living = (reference() for reference in references)
    return any(v is not None and id(v) in ids for v in living)
