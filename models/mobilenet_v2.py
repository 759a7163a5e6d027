"""MobileNetV2: inverted residuals with linear bottlenecks and depthwise convolutions.

Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear
Bottlenecks" (2018), table 2. No data loading and no training loop.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
Shape = tuple[int, int, int]

# Rows of table 2: expansion, channels, blocks, stride of the first block.
PAPER = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def build(
    *,
    input_shape: Shape = (16, 16, 3),
    classes: int = 10,
    width: float = 0.25,
    stages: tuple[tuple[int, int, int, int], ...] = PAPER[:3],
    dropout: float = 0.0,
) -> keras.Model:
    """Returns images [batch, height, width, channels] to logits [batch, classes].

    The paper's network is `input_shape=(224, 224, 3), classes=1000, width=1.0,
    stages=PAPER, dropout=0.2`.

    Args:
      input_shape: height, width and channels of an image.
      classes: number of classes.
      width: the paper's width multiplier; numbers of channels are multiples of 8.
      stages: expansion, channels, blocks and first stride of each stage.
      dropout: fraction dropped before the logits; 0 adds no dropout.
    """
    images = keras.Input(input_shape, name="images")
    x = _conv_norm(images, _channels(32, width), 3, 2, "stem")
    for stage, (expansion, channels, blocks, stride) in enumerate(stages):
        for block in range(blocks):
            x = _inverted_residual(
                x,
                expansion,
                _channels(channels, width),
                stride if block == 0 else 1,
                f"stage{stage}_block{block}",
            )
    # Table 2 and section 5: a narrower network keeps all 1280 features at its end.
    x = _conv_norm(x, _channels(1280, max(width, 1.0)), 1, 1, "features")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    return keras.Model(
        images, layers.Dense(classes, name="logits")(x), name="mobilenet"
    )


def example_batch(
    batch: int,
    seed: int,
    *,
    input_shape: Shape = (16, 16, 3),
    classes: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [batch, *input_shape] (float32) and labels [batch] (int32)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, *input_shape), dtype=np.float32)
    return x, random.integers(classes, size=batch, dtype=np.int32)


def _channels(channels: int, width: float) -> int:
    """Channels times width: the nearest multiple of 8, but no more than 10 % fewer."""
    wanted = channels * width
    found = max(8, int(wanted + 4) // 8 * 8)
    return found + 8 if found < 0.9 * wanted else found


def _inverted_residual(
    x: keras.KerasTensor, expansion: int, channels: int, stride: int, name: str
) -> keras.KerasTensor:
    """Wider by 1×1, depthwise 3×3, narrow by a linear 1×1; a shortcut if alike."""
    before, h = x, x
    if expansion > 1:
        h = _conv_norm(h, expansion * x.shape[-1], 1, 1, f"{name}_expand")
    h = layers.DepthwiseConv2D(
        3,
        stride,
        padding="same",
        use_bias=False,
        depthwise_initializer="he_normal",
        name=f"{name}_depthwise_conv",
    )(h)
    h = _norm(h, f"{name}_depthwise")
    h = layers.ReLU(6.0, name=f"{name}_depthwise_relu")(h)
    h = _conv_norm(h, channels, 1, 1, f"{name}_project", activation=False)
    if stride == 1 and before.shape[-1] == channels:
        h = layers.Add(name=f"{name}_add")([before, h])
    return h


def _conv_norm(
    x: keras.KerasTensor,
    channels: int,
    kernel: int,
    stride: int,
    name: str,
    *,
    activation: bool = True,
) -> keras.KerasTensor:
    """Convolution without bias, batch norm and, unless it is linear, ReLU6."""
    x = layers.Conv2D(
        channels,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    x = _norm(x, name)
    return layers.ReLU(6.0, name=f"{name}_relu")(x) if activation else x


def _norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    # The momentum of the authors' training code; for a handful of steps it is all one.
    return layers.BatchNormalization(momentum=0.997, name=f"{name}_norm")(x)
