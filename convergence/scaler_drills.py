"""Drills of what a loss scale is by default, and of what is saved of a scaler.

Used by `drills`; no step is taken here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

import amp

# Written here once more, and not read from the package under trial.
DEFAULTS = {
    "initial": 2.0**15,
    "growth_interval": 2000,
    "factor": 2.0,
    "backoff": 0.5,
    "minimum": 2.0**-14,
    "maximum": 2.0**24,
    "hysteresis": 1,
    "on_overflow": "zeros",
}
# What is saved, and what stands there when it is read; no two values are the same.
SAVED = {"scale": 1.5 * 2.0**3, "good_steps": 5, "bad_steps": 2, "skipped_steps": 11}
MEANWHILE = {"scale": 2.0**9, "good_steps": 7, "bad_steps": 1, "skipped_steps": 3}


def of_defaults() -> Iterator[str]:
    """What is wrong with a dynamic loss scale of which nothing is said."""
    rule = amp.loss_scaling.DynamicLossScale()
    for field, due in DEFAULTS.items():
        if (found := getattr(rule, field)) != due:
            yield f"by default {field} is {found!r}, where {due!r} was due"


def of_copies(scalers: Sequence[Any], *, moves: bool) -> Iterator[str]:
    """What is wrong with scalers that are saved, changed and read back.

    Args:
      scalers: their values are lost.
      moves: whether their scale does; else all but the count of skipped updates is the
        rule's.
    """
    group = amp.loss_scaling.current()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(loss_scale=group)
        path = f"{folder}/scalers"
        told = [(lambda: checkpoint.write(path), checkpoint.read, "a checkpoint")]
        told.append((group.state_dict, group.load_state_dict, "state_dict"))
        for save, restore, where in told:
            yield from _lost(scalers, moves, save, restore, where)


def _lost(
    scalers: Sequence[Any],
    moves: bool,
    save: Callable[[], Any],
    restore: Callable[[Any], Any],
    where: str,
) -> Iterator[str]:
    due = SAVED if moves else {"skipped_steps": SAVED["skipped_steps"]}
    _set(scalers, SAVED)
    held = save()
    _set(scalers, MEANWHILE)
    restore(held)
    for scaler in scalers:
        for field, value in due.items():
            if (found := getattr(scaler, field).numpy()) != value:
                yield f"{where} gives {field} {found:g}, where {value:g} was saved"


def _set(scalers: Sequence[Any], values: dict[str, float]) -> None:
    for scaler in scalers:
        for field, value in values.items():
            getattr(scaler, field).assign(value)
