"""FCN: a class for every pixel, from VGG-16 made fully convolutional.

Long, Shelhamer and Darrell, "Fully Convolutional Networks for Semantic Segmentation"
(2015), figure 3: fc6 and fc7 as convolutions, scores of stages 3, 4 and 5 added on the
way up (FCN-32s, FCN-16s and FCN-8s), upsampling that starts as bilinear interpolation.
"same" padding stands for the paper's 100 pixels around the image and its cropping. No
pre-trained weights and no training loop.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

from models import scenes, vgg

Shape = tuple[int, int, int]
VOID = 255  # the label of pixels that have no loss
LOSS = functools.partial(
    keras.losses.SparseCategoricalCrossentropy, from_logits=True, ignore_class=VOID
)
STRIDES = (8, 16, 32)


def build(
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 4,
    width: int = 4,
    stride: int = 8,
    normalize: bool = False,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns images [batch, height, width, channels] to a class's logits per pixel.

    The paper's FCN-8s is `input_shape=(500, 500, 3)` padded to multiples of 32,
    `classes=21, width=64, dropout=0.5`.

    Args:
      input_shape: height, width and channels of an image.
      classes: number of classes, the background among them.
      width: channels of the first stage; fc6 and fc7 have 64 times as many.
      stride: pixels of the finest scores: 32, 16 (adds stage 4) or 8 (adds stage 3).
      normalize: batch norm after each convolution, which training from scratch needs.
      dropout: fraction dropped after fc6 and fc7; 0 adds no dropout.

    Raises:
      ValueError: another stride, or sides that are no multiples of 32.
    """
    if stride not in STRIDES:
        raise ValueError(
            f"stride is {stride}; there are {', '.join(map(str, STRIDES))}"
        )
    if any(side % 32 for side in input_shape[:2]):
        raise ValueError(
            f"images of {input_shape[0]}x{input_shape[1]}; "
            "the sides must be multiples of 32"
        )
    images = keras.Input(input_shape, name="images")
    stages = vgg.stages(images, width, normalize=normalize)
    pooled = [layers.MaxPooling2D(2, name=f"skip{n + 1}")(stages[n]) for n in (2, 3, 4)]
    x = pooled[2]
    for name, kernel in (("fc6", 7), ("fc7", 1)):
        x = vgg.conv(x, 64 * width, kernel, name, normalize=normalize)
        x = layers.Dropout(dropout, name=f"{name}_dropout")(x) if dropout else x
    x = _scores(x, classes, "score5")
    for level in (4, 3):
        if stride < 2**level * 2:
            x = _upsampled(x, 2, f"up{level}")
            skip = _scores(pooled[level - 3], classes, f"score{level}")
            x = layers.Add(name=f"add{level}")([x, skip])
    return keras.Model(images, _upsampled(x, stride, "logits"), name=f"fcn{stride}s")


def example_batch(
    batch: int, seed: int, *, input_shape: Shape = (64, 64, 3), classes: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and classes [batch, height, width], 0 outside the rectangles.

    The border of each image is `VOID`.
    """
    sizes = (input_shape, classes - 1, 3)
    images, boxes, labels = scenes.rectangles(batch, seed, sizes)
    pixels = np.zeros(images.shape[:3], np.int32)
    for row, some, kinds in zip(pixels, boxes, labels, strict=True):
        cells = (some * np.array(input_shape[:2] * 2)).astype(int)
        for (top, left, bottom, right), kind in zip(cells, kinds, strict=True):
            row[top:bottom, left:right] = kind
    pixels[:, [0, -1]], pixels[:, :, [0, -1]] = VOID, VOID
    return images, pixels


@keras.saving.register_keras_serializable("models")
class Bilinear(keras.initializers.Initializer):
    """A transposed convolution that interpolates each channel by itself."""

    def __call__(
        self, shape: tuple[int, ...], dtype: str | None = None, **_: object
    ) -> np.ndarray:
        side, _, channels, _ = shape
        steps = 1 - np.abs((np.arange(side) + 0.5) * 2 / side - 1)
        kernel = np.outer(steps, steps)[..., None, None] * np.eye(channels)
        return keras.ops.convert_to_tensor(kernel, dtype)


def _scores(x: keras.KerasTensor, classes: int, name: str) -> keras.KerasTensor:
    """Scores of the classes in each cell; the paper starts them at zero."""
    return layers.Conv2D(classes, 1, kernel_initializer="zeros", name=name)(x)


def _upsampled(x: keras.KerasTensor, factor: int, name: str) -> keras.KerasTensor:
    return layers.Conv2DTranspose(
        x.shape[-1],
        2 * factor,
        factor,
        padding="same",
        use_bias=False,
        kernel_initializer=Bilinear(),
        name=name,
    )(x)
