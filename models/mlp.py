"""Multilayer perceptron: dense layers with ReLU, then logits.

No convolution and no state: the smallest model with matrix products in both directions.
"""

from __future__ import annotations

import functools

import keras
import numpy as np

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def build(
    *,
    features: int = 32,
    hidden: tuple[int, ...] = (64, 64),
    classes: int = 10,
    activation: str = "relu",
) -> keras.Model:
    """Returns a model from [batch, features] to logits [batch, classes].

    Args:
      features: length of an input vector.
      hidden: units of each hidden layer.
      classes: number of classes.
      activation: of the hidden layers, by its Keras name.
    """
    inputs = keras.Input((features,), name="features")
    x = inputs
    for index, units in enumerate(hidden):
        x = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer="he_normal",
            name=f"hidden_{index}",
        )(x)
    logits = keras.layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="mlp")


def example_batch(
    batch: int, seed: int, *, features: int = 32, classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Returns features [batch, features] (float32) and labels [batch] (int32)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, features), dtype=np.float32)
    return x, random.integers(classes, size=batch, dtype=np.int32)
