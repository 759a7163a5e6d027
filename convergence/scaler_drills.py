"""Drills of what a loss scale is by default, and of what is saved of a scaler.

Used by `drills`; no step is taken here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

import amp
from amp.loss_scaling import state
from amp.loss_scaling.process import SCALING

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


def of_restarts() -> Iterator[str]:
    """What is wrong with a scaler that is made after its saved values were read.

    So it is in a job that goes on in another process. The scaler is of a model of one
    weight, under a policy that says nothing of a loss scale.
    """
    weight = tf.Variable([1.0, 2.0], name="weight")
    with tempfile.TemporaryDirectory() as folder:
        with _started():
            scaler, group = _first_scaler(weight), amp.loss_scaling.current()
            rule = None if scaler is None else scaler.settings
            if rule != amp.loss_scaling.DynamicLossScale():
                yield f"by default float16 has the loss scale {rule}, not a dynamic one"
                return
            _set([scaler], SAVED)
            path = tf.train.Checkpoint(loss_scale=group).write(f"{folder}/scalers")
            states, row = group.state_dict(), state.kept([weight])
        ways: dict[str, Callable[[Any], Any]] = {
            "a checkpoint": lambda new: tf.train.Checkpoint(loss_scale=new).read(path),
            "state_dict": lambda new: new.load_state_dict(states),
            "a weight file": lambda new: state.give_back([weight], row),
        }
        for name, read in ways.items():
            with _started():
                read(amp.loss_scaling.current())
                later = _first_scaler(weight)
                yield from _told([later], SAVED, f"after a restart {name}")


def _first_scaler(weight: tf.Variable) -> Any:
    """The scaler of a first step, in the same line each time; None if there is none."""

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        return tape.gradient(loss, weight)

    known = amp.loss_scaling.current().scalers
    with amp.mixed_precision_scope(amp.Policy(dtype="float16")):
        step.get_concrete_function()
    made = [s for s in amp.loss_scaling.current().scalers if s not in known]
    return made[0] if made else None


@contextlib.contextmanager
def _started() -> Iterator[None]:
    """Has the package know no scaler, as a new process; afterwards those of before."""
    held = {f.name: getattr(SCALING, f.name) for f in dataclasses.fields(SCALING)}
    SCALING.reset()
    try:
        yield
    finally:
        for name, value in held.items():
            setattr(SCALING, name, value)


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
    yield from _told(scalers, due, where)


def _told(
    scalers: Sequence[Any], due: Mapping[str, float], where: str
) -> Iterator[str]:
    for scaler in scalers:
        for field, value in due.items():
            if (found := getattr(scaler, field).numpy()) != value:
                yield f"{where} gives {field} {found:g}, where {value:g} was saved"


def _set(scalers: Sequence[Any], values: dict[str, float]) -> None:
    for scaler in scalers:
        for field, value in values.items():
            getattr(scaler, field).assign(value)
