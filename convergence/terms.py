"""A task with terms by which one gradient alone is made infinite, and its batches.

Used by `drills`; no step is taken here.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from convergence.steps import tensors
from convergence.task import Batch, Part, Task

WARM = 3  # steps before the first, so that optimizers hold something
TRIES = 8  # batches at which a constant scale may overflow


def added(task: Task) -> Task:
    """The task with a term for each variable that a part trains.

    The term is 0, and its gradient by the variable is the factor at the variable's
    place in the last array of a batch, in each value or, where the gradient is of
    slices, in one row twice.
    """

    def parts(stage: int) -> list[Part]:
        found, begin = [], 0
        for part in task.parts(stage):
            found.append(_with_term(part, begin))
            begin += len(part.variables)
        return found

    def batch(seed: int, number: int) -> Batch:
        count = sum(len(p.variables) for p in task.parts(task.stage(number)))
        return (*task.batch(seed, number), np.zeros(count, np.float32))

    return dataclasses.replace(task, parts=parts, batch=batch)


def _with_term(part: Part, begin: int) -> Part:
    def loss(batch: Batch) -> tf.Tensor:
        found, factors = part.loss(batch[:-1]), batch[-1]
        for place, variable in enumerate(part.variables, begin):
            value = _value(variable)
            term = tf.reduce_sum(value - tf.stop_gradient(value))
            found += factors[place] * term
        return found

    return dataclasses.replace(part, loss=loss)


def _value(variable: keras.Variable) -> tf.Tensor:
    """What the term reads: of a table of embeddings two equal rows, else all."""
    if variable.path.endswith("/embeddings"):
        return tf.gather(variable.value, [0, 0])
    return tf.convert_to_tensor(variable.value)


def batches(task: Task, stage: int, seed: int) -> list[Batch]:
    """Batches of a stage's first steps, with terms; of a short one the last again."""
    numbers: list[int] = []
    first = next(n for n in range(10**9) if task.stage(n) == stage)
    for number in range(first, first + WARM + TRIES):
        numbers.append(number if task.stage(number) == stage else numbers[-1])
    whole = added(task)
    return [tensors(whole.batch(seed, number)) for number in numbers]
