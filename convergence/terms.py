"""A task with terms by which one value of a gradient is made infinite, and its batches.

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
PLACES = 3  # values of a gradient that may be made infinite: first, one amid, last


def added(task: Task) -> Task:
    """The task with a term for each variable that a part trains.

    The term is 0, and its gradient by the variable has the factors of the variable, in
    the last array of a batch, at `PLACES`, and is 0 elsewhere; where the gradient is of
    slices, in one row that comes twice.
    """

    def parts(stage: int) -> list[Part]:
        found, begin = [], 0
        for part in task.parts(stage):
            found.append(_with_term(part, begin))
            begin += len(part.variables)
        return found

    def batch(seed: int, number: int) -> Batch:
        count = sum(len(p.variables) for p in task.parts(task.stage(number)))
        return (*task.batch(seed, number), np.zeros((count, PLACES), np.float32))

    return dataclasses.replace(task, parts=parts, batch=batch)


def _with_term(part: Part, begin: int) -> Part:
    def loss(batch: Batch) -> tf.Tensor:
        found, factors = part.loss(batch[:-1]), batch[-1]
        for place, variable in enumerate(part.variables, begin):
            value = _value(variable)
            term = value - tf.stop_gradient(value)
            found += tf.reduce_sum(_spread(factors[place], value.shape) * term)
        return found

    return dataclasses.replace(part, loss=loss)


def is_table(variable: keras.Variable) -> bool:
    """Whether the gradient by a variable is of rows, as that by embeddings."""
    return bool(variable.path.endswith("/embeddings"))


def _value(variable: keras.Variable) -> tf.Tensor:
    """What the term reads: of a table of embeddings two equal rows, else all."""
    if is_table(variable):
        return tf.gather(variable.value, [0, 0])
    return tf.convert_to_tensor(variable.value)


def _spread(factors: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """A variable's factors at `PLACES` of a tensor that is 0 elsewhere."""
    size = shape.num_elements()
    places = [[0], [size // 2], [size - 1]]  # of one value all three, which add up
    return tf.reshape(tf.scatter_nd(places, factors, [size]), shape)


def batches(task: Task, stage: int, seed: int) -> list[Batch]:
    """Batches of a stage's first steps, with terms; of a short one the last again."""
    numbers: list[int] = []
    first = next(n for n in range(10**9) if task.stage(n) == stage)
    for number in range(first, first + WARM + TRIES):
        numbers.append(number if task.stage(number) == stage else numbers[-1])
    whole = added(task)
    return [tensors(whole.batch(seed, number)) for number in numbers]
