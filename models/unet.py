"""U-Net: convolutions down to a bottleneck and up again, with skip connections.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (2015), figure 1, but with "same" padding, so that the output has the size
of the input and nothing is cropped. No weight maps and no data augmentation.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
Shape = tuple[int, int, int]


def build(
    *,
    input_shape: Shape = (16, 16, 1),
    classes: int = 2,
    width: int = 8,
    depth: int = 2,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns images [batch, height, width, channels] to a class's logits per pixel.

    The paper's network is `width=64, depth=4, dropout=0.5`: 23 convolutions.

    Args:
      input_shape: height, width and channels of an image.
      classes: number of classes of a pixel.
      width: channels at full resolution, twice as many at each level below.
      depth: levels below full resolution.
      dropout: fraction dropped at the end of the way down; 0 adds no dropout.

    Raises:
      ValueError: a height or width that cannot be halved `depth` times.
    """
    if any(side % 2**depth for side in input_shape[:2]):
        raise ValueError(
            f"images of {input_shape[0]}x{input_shape[1]} cannot be halved {depth} "
            f"times; the sides must be multiples of {2**depth}"
        )
    x = images = keras.Input(input_shape, name="images")
    skips = []
    for level in range(depth):
        x = _double_conv(x, width << level, f"down{level}")
        skips.append(x)
        x = layers.MaxPooling2D(2, name=f"down{level}_pool")(x)
    x = _double_conv(x, width << depth, "bottom")
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    for level in reversed(range(depth)):
        x = _up(x, skips[level], width << level, f"up{level}")
    logits = layers.Conv2D(classes, 1, name="logits")(x)
    return keras.Model(images, logits, name="unet")


def example_batch(
    batch: int,
    seed: int,
    *,
    input_shape: Shape = (16, 16, 1),
    classes: int = 2,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [batch, *input_shape] and classes [batch, height, width].

    A pixel's class follows from its value, so that there is something to learn.
    """
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, *input_shape), dtype=np.float32)
    bounds = np.linspace(-1.0, 1.0, classes + 1)[1:-1]
    return x, np.digitize(x[..., 0], bounds).astype(np.int32)


def _double_conv(x: keras.KerasTensor, channels: int, name: str) -> keras.KerasTensor:
    for part in "ab":
        x = layers.Conv2D(
            channels,
            3,
            padding="same",
            activation="relu",
            kernel_initializer="he_normal",
            name=f"{name}_{part}",
        )(x)
    return x


def _up(
    x: keras.KerasTensor, skip: keras.KerasTensor, channels: int, name: str
) -> keras.KerasTensor:
    """Twice the resolution, half the channels, the skip beside it, two convolutions."""
    x = layers.Conv2DTranspose(channels, 2, 2, name=f"{name}_conv")(x)
    x = layers.Concatenate(name=f"{name}_skip")([skip, x])
    return _double_conv(x, channels, name)
