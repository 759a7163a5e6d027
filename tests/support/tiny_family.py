"""A family that trains in a second: two small networks, one of which needs scaling.

The gradients of `large` are so large that a scale of 2^15 overflows float16; those of
`small` so small that unscaled they are 0 in it. It stands in for a module of
`convergence.tasks`. No test lives here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from convergence import task
from convergence.families import Family, Size

LARGE, SMALL = 2.0**6, 2.0**-18  # weights of the two losses
TRAINED, TESTED = 256, 256


@dataclasses.dataclass(frozen=True)
class Data:
    name: str
    x: np.ndarray
    y: np.ndarray


def load(size: Size, directory: Path | None) -> Data:
    random = np.random.default_rng(7)
    x = random.standard_normal((TRAINED + TESTED, 8)).astype(np.float32)
    y = np.tanh(x @ random.standard_normal((8, 1)) / 2).astype(np.float32)
    return Data("synthetic", x, y + 0.1)


def trivial(data: Data, size: Size) -> float:
    return float(data.y[TRAINED:].std())


def make(data: Data, size: Size) -> task.Task:
    x = keras.Input((8,))
    outputs = []
    for name in ("large", "small"):
        hidden = keras.layers.Dense(16, "tanh", name=f"{name}_hidden")(x)
        outputs.append(keras.layers.Dense(1, name=f"{name}_out")(hidden))
    model = keras.Model(x, outputs)
    optimizer = keras.optimizers.Adam(task.cosine(size.rate, size.steps))

    def loss(batch: task.Batch) -> tf.Tensor:
        features, wanted = batch
        large, small = (
            tf.reduce_mean((found - wanted) ** 2)
            for found in model(features, training=True)
        )
        return LARGE * large + SMALL * small

    def batch(seed: int, step: int) -> task.Batch:
        rows = task.rows(seed, step, batch=size.batch, count=TRAINED)
        return data.x[rows], data.y[rows]

    def evaluate() -> float:
        found = model(data.x[TRAINED:], training=False)
        errors = [float(tf.reduce_mean((f - data.y[TRAINED:]) ** 2)) for f in found]
        return float(np.mean(np.sqrt(errors)))

    return task.simple(model, loss, optimizer, batch, evaluate)


SIZE = Size(steps=60, batch=32, rate=0.03, floor=0.5, data={}, model={})
TINY = Family(
    name="tiny",
    title="Tiny",
    task="tiny",
    model="mlp",
    optimizer="Adam",
    metric="error",
    higher=False,
    worst=1.0,
    trivial="the mean",
    margin=0.05,
    seeds=3,
    files="none",
    full=SIZE,
    quick=SIZE,
    real=SIZE,
)


def install(monkeypatch: Any) -> Family:
    """Has the suite find the module as a task; returns the family."""
    import sys

    module: Any = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "convergence.tasks.tiny", module)
    return TINY
