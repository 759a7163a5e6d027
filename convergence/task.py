"""What a family adds to the training loop: a frozen `Task`, and the order of examples.

The loop itself is in `training`; models and data come from their rooms.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

Batch: TypeAlias = tuple[Any, ...]
# A metric; or of each class the value, by its name, of which the metric is the mean.
Metric: TypeAlias = "float | dict[str, float]"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A loss and what it trains.

    Attributes:
      loss: of a batch, shape ().
      updates: optimizers, and the variables that each updates.
    """

    loss: Callable[[Batch], tf.Tensor]
    updates: tuple[tuple[keras.Optimizer, Sequence[keras.Variable]], ...]

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for _, some in self.updates for variable in some]


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A model with its losses, its data and its metric.

    Attributes:
      model: what is trained.
      parts: the losses of a step at a stage, in their order.
      batch: arrays that a step trains on, by seed and step number alone.
      evaluate: the metric on the test split; leaves the model as it is.
      stages: the stages there are; most models have one.
      stage: the stage of a step.
      carried: variables that the model carries from step to step.
    """

    model: keras.Model
    parts: Callable[[int], Sequence[Part]]
    batch: Callable[[int, int], Batch]
    evaluate: Callable[[], Metric]
    stages: tuple[int, ...] = (0,)
    stage: Callable[[int], int] = lambda step: 0
    carried: tuple[tf.Variable, ...] = ()


def simple(
    model: keras.Model,
    loss: Callable[[Batch], tf.Tensor],
    optimizer: keras.Optimizer,
    batch: Callable[[int, int], Batch],
    evaluate: Callable[[], Metric],
) -> Task:
    """A task of one loss and one optimizer."""
    parts = (Part(loss, ((optimizer, model.trainable_variables),)),)
    return Task(model, lambda stage: parts, batch, evaluate)


def supervised(
    model: keras.Model,
    loss: Callable[[Any, Any], tf.Tensor],
    optimizer: keras.Optimizer,
    batch: Callable[[int, int], Batch],
    evaluate: Callable[[], Metric],
) -> Task:
    """A task whose batches are (x, y) and whose loss is `loss(y, model(x))`."""

    def of_batch(batch: Batch) -> tf.Tensor:
        x, y = batch
        return loss(y, model(x, training=True))

    return simple(model, of_batch, optimizer, batch, evaluate)


def mean(metric: Metric) -> float:
    """The metric as one figure; NaN if it is of no class."""
    values = list(metric.values()) if isinstance(metric, dict) else [metric]
    return float(np.mean(values)) if values else float("nan")


def rows(seed: int, step: int, *, batch: int, count: int) -> np.ndarray:
    """The rows of a step's batch, [batch]: every epoch has an order of its own."""
    places = step * batch + np.arange(batch)
    epochs = places // count
    return np.array(
        [
            _order(seed, int(epoch), count)[place % count]
            for epoch, place in zip(epochs, places, strict=True)
        ]
    )


def noise(seed: int, step: int) -> np.random.Generator:
    """The random numbers of a step."""
    return np.random.default_rng([seed, step, 1])


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 0]).permutation(count)


def cosine(rate: float, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate: up during a twentieth of the steps, then down by a cosine."""
    warm = max(steps // 20, 1)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=rate / 10,
        decay_steps=max(steps - warm, 1),
        warmup_target=rate,
        warmup_steps=warm,
    )


def inference(model: keras.Model) -> Callable[..., tf.Tensor]:
    """A model's inputs to its outputs, as at inference; traced once."""

    def call(*inputs: tf.Tensor) -> tf.Tensor:
        return model(inputs[0] if len(inputs) == 1 else list(inputs), training=False)

    return tf.function(call, autograph=False)


def outputs(
    call: Callable[..., tf.Tensor], inputs: Sequence[np.ndarray], batch: int
) -> np.ndarray:
    """What `inference` returns for all rows of its inputs.

    Args:
      call: what `inference` returned.
      inputs: its inputs, each [n, ...].
      batch: rows at a time; the last ones are filled up, so that one trace serves all.
    """
    count = len(inputs[0])
    found = []
    for start in range(0, count, batch):
        chosen = np.arange(start, start + batch).clip(max=count - 1)
        found.append(call(*(tf.convert_to_tensor(x[chosen]) for x in inputs)).numpy())
    return np.concatenate(found)[:count]
