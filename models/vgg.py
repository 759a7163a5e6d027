"""VGG-16's convolutions: the base network of SSD, Faster R-CNN and FCN.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition" (2014), configuration D. No dense layers, no pre-trained weights.
"""

from __future__ import annotations

import keras
from keras import layers

BLOCKS = (2, 2, 3, 3, 3)  # convolutions of each stage


def stages(
    x: keras.KerasTensor,
    width: int,
    *,
    normalize: bool,
    count: int = 5,
    scale: float = 1.0,
) -> list[keras.KerasTensor]:
    """Returns what each stage ends with, before its pooling; the first is conv1_2.

    Args:
      x: images [batch, height, width, channels].
      width: channels of the first stage, 64 in the paper; later ones are multiples.
      normalize: batch norm after each convolution, which training from scratch needs.
      count: stages wanted; stage s has 1 / 2^s of the images' height and width.
      scale: of activations up to conv4_3, where batch norm begins with it.
    """
    found = []
    for stage, blocks in enumerate(BLOCKS[:count]):
        if stage:
            x = layers.MaxPooling2D(2, 2, "same", name=f"pool{stage}")(x)
        for block in range(blocks):
            name = f"conv{stage + 1}_{block + 1}"
            channels = width * min(2**stage, 8)
            first = scale if stage < 4 else 1.0
            x = conv(x, channels, 3, name, normalize=normalize, scale=first)
        found.append(x)
    return found


def conv(
    x: keras.KerasTensor,
    channels: int,
    kernel: int,
    name: str,
    *,
    normalize: bool,
    scale: float = 1.0,
    **options: object,
) -> keras.KerasTensor:
    """Convolution (of any options that Keras has), batch norm if wanted, ReLU."""
    options = {"padding": "same", "kernel_initializer": "he_normal", **options}
    x = layers.Conv2D(
        channels, kernel, use_bias=not normalize, name=f"{name}_conv", **options
    )(x)
    if normalize:
        first = keras.initializers.Constant(scale)
        x = layers.BatchNormalization(
            momentum=0.9, gamma_initializer=first, name=f"{name}_norm"
        )(x)
    return layers.ReLU(name=f"{name}_relu")(x)
