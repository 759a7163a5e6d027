"""Residual networks: the CIFAR form (ResNet-20, 32, 44, ...) and the ImageNet form.

Architecture from He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition"
(2015), sections 4.1 and 4.2, with projection shortcuts (option B) where shapes change,
or, in the CIFAR form, the identity padded with zeros (option A), which the paper has.
ResNet-50 is the variant called v1.5, which Goyal et al., "Accurate, Large Minibatch
SGD" (2017), section 5.1, train too: a bottleneck's stride is in its 3×3 convolution,
where the paper has it in the first 1×1. No data loading and no training loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import layers, ops

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
Shape = tuple[int, int, int]


def build(
    *, depth: int = 8, classes: int = 10, input_shape: Shape = (16, 16, 3)
) -> keras.Model:
    """Returns a small CIFAR-form network; see `resnet_cifar`."""
    return resnet_cifar(depth, classes, input_shape)


def resnet_cifar(
    depth: int = 20,
    classes: int = 10,
    input_shape: Shape = (32, 32, 3),
    *,
    width: int = 16,
    shortcuts: str = "projection",
) -> keras.Model:
    """Returns images [batch, height, width, channels] to logits [batch, classes].

    Three stages of n = (depth - 2) / 6 basic blocks with `width`, 2·`width` and
    4·`width` channels, each stage after the first at half the resolution.

    Args:
      depth: weighted layers, 6n + 2 (20, 32, 44, 56, 110; 8 is the smallest).
      classes: number of classes.
      input_shape: height, width and channels of an image.
      width: channels of the first stage.
      shortcuts: where shapes change, "projection" or "identity".

    Raises:
      ValueError: a depth that is not 6n + 2, or other shortcuts.
    """
    if shortcuts not in SHORTCUTS:
        raise ValueError(
            f"shortcuts are {shortcuts!r}; there are {', '.join(SHORTCUTS)}"
        )
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(
            f"depth is {depth}; a CIFAR ResNet has 6n + 2 layers (8, 20, …)"
        )
    images = keras.Input(input_shape, name="images")
    x = _conv_norm(images, width, 3, 1, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage}_block{block}"
            x = _basic_block(x, width << stage, stride, name, SHORTCUTS[shortcuts])
    return keras.Model(images, _head(x, classes), name=f"resnet{depth}")


def resnet50(
    classes: int = 1000,
    input_shape: Shape = (224, 224, 3),
    *,
    width: int = 64,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
) -> keras.Model:
    """Returns images [batch, height, width, channels] to logits [batch, classes].

    The defaults are ResNet-50 v1.5; smaller `width`, `blocks` and `input_shape` scale
    it.

    Args:
      classes: number of classes.
      input_shape: height, width and channels of an image.
      width: channels of the stem; stage s works in `width`·2^s and returns four times
        as many.
      blocks: bottleneck blocks per stage.
    """
    images = keras.Input(input_shape, name="images")
    x = _conv_norm(images, width, 7, 2, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    x = layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage}_block{block}"
            x = _bottleneck_block(x, width << stage, stride, name)
    return keras.Model(images, _head(x, classes), name="resnet50")


def example_batch(
    batch: int,
    seed: int,
    *,
    classes: int = 10,
    input_shape: Shape = (16, 16, 3),
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [batch, *input_shape] (float32) and labels [batch] (int32)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, *input_shape), dtype=np.float32)
    return x, random.integers(classes, size=batch, dtype=np.int32)


def _conv_norm(
    x: keras.KerasTensor, channels: int, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    """Convolution without bias (the normalisation has one), then batch norm."""
    x = layers.Conv2D(
        channels,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


def _basic_block(
    x: keras.KerasTensor, channels: int, stride: int, name: str, short: Shortcut
) -> keras.KerasTensor:
    shortcut = short(x, channels, stride, name)
    x = layers.ReLU(name=f"{name}_a_relu")(
        _conv_norm(x, channels, 3, stride, f"{name}_a")
    )
    x = _conv_norm(x, channels, 3, 1, f"{name}_b")
    x = layers.Add(name=f"{name}_add")([x, shortcut])
    return layers.ReLU(name=f"{name}_relu")(x)


def _bottleneck_block(
    x: keras.KerasTensor, channels: int, stride: int, name: str
) -> keras.KerasTensor:
    """1×1 to fewer channels, 3×3 with the stride, 1×1 to four times as many."""
    shortcut = _projection(x, 4 * channels, stride, name)
    x = layers.ReLU(name=f"{name}_a_relu")(_conv_norm(x, channels, 1, 1, f"{name}_a"))
    x = layers.ReLU(name=f"{name}_b_relu")(
        _conv_norm(x, channels, 3, stride, f"{name}_b")
    )
    x = _conv_norm(x, 4 * channels, 1, 1, f"{name}_c")
    x = layers.Add(name=f"{name}_add")([x, shortcut])
    return layers.ReLU(name=f"{name}_relu")(x)


def _projection(
    x: keras.KerasTensor, channels: int, stride: int, name: str
) -> keras.KerasTensor:
    """The identity where shapes agree, else a strided 1×1 projection."""
    if stride == 1 and x.shape[-1] == channels:
        return x
    return _conv_norm(x, channels, 1, stride, f"{name}_shortcut")


def _identity(
    x: keras.KerasTensor, channels: int, stride: int, name: str
) -> keras.KerasTensor:
    """The identity: every `stride`-th pixel, and zeros for the channels beyond."""
    more = channels - x.shape[-1]
    if stride > 1:
        x = layers.AveragePooling2D(1, stride, "same", name=f"{name}_shortcut")(x)
    return ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, more)]) if more else x


Shortcut = Callable[[keras.KerasTensor, int, int, str], keras.KerasTensor]
SHORTCUTS: dict[str, Shortcut] = {"projection": _projection, "identity": _identity}


def _head(x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return layers.Dense(classes, kernel_initializer="he_normal", name="logits")(x)
