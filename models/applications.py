"""Image networks of keras.applications, as others wrote them, with random weights.

No layer is made here; any network whose function takes the usual arguments will do.
"""

from __future__ import annotations

import functools

import keras
import numpy as np

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
Shape = tuple[int, int, int]


def build(
    *,
    network: str = "MobileNet",
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
) -> keras.Model:
    """Returns images [batch, height, width, channels] to logits [batch, classes].

    Args:
      network: name of a function of `keras.applications`.
      input_shape: height, width and channels of an image; networks have a least side.
      classes: number of classes.
    """
    model: keras.Model = getattr(keras.applications, network)(
        weights=None,
        input_shape=input_shape,
        classes=classes,
        classifier_activation=None,
    )
    return model


def example_batch(
    batch: int,
    seed: int,
    *,
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [batch, *input_shape] (float32) and labels [batch] (int32).

    Pixels are from 0 to 255, as networks that scale them themselves expect.
    """
    random = np.random.default_rng(seed)
    x = 255 * random.random((batch, *input_shape), dtype=np.float32)
    return x, random.integers(classes, size=batch, dtype=np.int32)
