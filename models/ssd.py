"""SSD: boxes and classes from feature maps of several scales, in one pass.

Liu et al., "SSD: Single Shot MultiBox Detector" (2016): the VGG-16 base network with
dilated fc6, the extra layers, the heads, and the loss with hard negative mining.
Default boxes, matching and non-maximum suppression are in `default_boxes`. No
augmentation, no pre-trained weights, no training loop.

A target or a prediction has one row per default box: four offsets, then the class (0 is
the background) or the logits of the classes.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from models import default_boxes, scenes, vgg
from models.boxes import smooth_l1

Shape = tuple[int, int, int]

NEGATIVES = 3  # section 2.2: at most so many negatives to a positive


def build(
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 3,
    width: int = 4,
    normalize: bool = False,
    normalize_base: bool = True,
    scale: float = 1.0,
    heads: float | None = None,
) -> keras.Model:
    """Returns images [batch, height, width, 3] to [batch, boxes, 4 + classes + 1].

    The paper's SSD300 is `input_shape=(300, 300, 3), classes=20, width=64`.

    Args:
      input_shape: height, width and channels of an image; square, at least 33.
      classes: number of classes without the background.
      width: channels of the first stage; the others are multiples of it.
      normalize: batch norm after fc6, fc7 and each convolution of the extra layers,
        which training from scratch needs.
      normalize_base: with `normalize`, also after each convolution before fc6. The
        paper's VGG-16 has none.
      scale: of pixels, and so of activations up to conv5_3; with batch norm there, up
        to conv4_3. The paper's pixels are 0 to 255 less their mean, and conv4_3 is
        larger than what follows (section 3.1): 127.5 makes such an SSD of images from
        -1 to 1.
      heads: standard deviation of the heads' first weights; None for Glorot's, as the
        paper has it. With these the first loss is ten times that of a head which says
        nothing yet, and two runs that begin a rounding apart soon are far apart.

    Raises:
      ValueError: an image that is not square or too small.
    """
    counts = default_boxes.boxes_a_cell(len(map_sides(input_shape)))
    images = keras.Input(input_shape, name="images")
    pixels = images if scale == 1.0 else layers.Rescaling(scale, name="pixels")(images)
    base = vgg.stages(
        pixels, width, normalize=normalize and normalize_base, scale=scale
    )
    maps = _feature_maps(base, width, normalize)
    found = [
        _head(x, count, classes, f"head{index}", heads)
        for index, (x, count) in enumerate(zip(maps, counts, strict=True))
    ]
    return keras.Model(images, layers.Concatenate(1, name="boxes")(found), name="ssd")


def example_batch(
    batch: int,
    seed: int,
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 3,
    objects: int = 3,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [batch, *input_shape] and targets [batch, boxes, 5]."""
    sizes = (input_shape, classes, objects)
    images, boxes, labels = scenes.rectangles(batch, seed, sizes)
    defaults = default_boxes.default_boxes(map_sides(input_shape))
    return images, default_boxes.targets(boxes, labels, defaults).numpy()


@keras.saving.register_keras_serializable("models")
class MultiboxLoss(keras.losses.Loss):
    """Smooth L1 on the offsets plus softmax loss on the classes, equation 1.

    Both are sums over all boxes of the batch, divided by the number of matched ones (0
    if none is matched). Of the unmatched boxes only those with the highest loss count,
    `NEGATIVES` to a matched one of the same image.
    """

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        labels = ops.cast(y_true[..., 4], "int32")
        matched = ops.cast(labels > 0, y_pred.dtype)
        offsets = smooth_l1(y_true[..., :4] - y_pred[..., :4])
        classes = ops.sparse_categorical_crossentropy(
            labels, y_pred[..., 4:], from_logits=True
        )
        counted = matched + hard_negatives(classes, matched)
        total = ops.sum(matched * offsets + counted * classes)
        return total / ops.maximum(ops.sum(matched), 1.0)


LOSS = MultiboxLoss


def hard_negatives(classes: tf.Tensor, matched: tf.Tensor) -> tf.Tensor:
    """Which unmatched boxes count, 1 or 0, as [batch, boxes].

    Args:
      classes: loss of the classes, [batch, boxes], at least 0.
      matched: 1 for a matched box, else 0, [batch, boxes].
    """
    loss = ops.stop_gradient(classes) * (1.0 - matched) - matched
    rank = ops.argsort(ops.argsort(-loss, axis=1), axis=1)
    wanted = NEGATIVES * ops.sum(matched, axis=1, keepdims=True)
    hardest = ops.cast(ops.cast(rank, matched.dtype) < wanted, matched.dtype)
    return hardest * (1.0 - matched)


@keras.saving.register_keras_serializable("models")
class L2Scale(layers.Layer):
    """Each position's features at length 1 times a learned scale (section 3.1)."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        twenty = keras.initializers.Constant(20.0)
        self.scale = self.add_weight((input_shape[-1],), twenty, name="scale")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return ops.normalize(x, axis=-1) * self.scale


def map_sides(input_shape: Shape) -> list[int]:
    """Height and width, in cells, of each feature map that has a head.

    The paper's 300 gives 38, 19, 10, 5, 3, 1.

    Raises:
      ValueError: an image that is not square, or too small for three maps.
    """
    side = input_shape[0]
    if input_shape[1] != side or side < 33:
        raise ValueError(
            f"images of {side}x{input_shape[1]}; SSD takes square ones of at least 33"
        )
    sides = [-(-side // 8), -(-side // 16)]
    while sides[-1] >= 3:
        sides.append(-(-sides[-1] // 2) if sides[-1] > 5 else sides[-1] - 2)
    return sides


def _feature_maps(
    base: list[keras.KerasTensor], width: int, normalize: bool
) -> list[keras.KerasTensor]:
    """After VGG-16's stages: fc6 and fc7 as convolutions, extra layers (figure 2)."""
    maps = [L2Scale(name="conv4_3_scale")(base[3])]
    x = layers.MaxPooling2D(3, 1, "same", name="pool5")(base[4])
    x = vgg.conv(x, 16 * width, 3, "fc6", normalize=normalize, dilation_rate=6)
    maps.append(vgg.conv(x, 16 * width, 1, "fc7", normalize=normalize))
    while maps[-1].shape[1] >= 3:
        maps.append(_extra(maps[-1], width, f"conv{len(maps) + 6}", normalize))
    return maps


def _extra(
    x: keras.KerasTensor, width: int, name: str, normalize: bool
) -> keras.KerasTensor:
    """1x1 to fewer channels, then 3x3: half the side, or from 5 on two cells less."""
    first = name == "conv8"
    halves = {"strides": 2} if x.shape[1] > 5 else {"padding": "valid"}
    narrow, wide = (4, 8) if first else (2, 4)
    x = vgg.conv(x, narrow * width, 1, f"{name}_1", normalize=normalize)
    return vgg.conv(x, wide * width, 3, f"{name}_2", normalize=normalize, **halves)


def _head(
    x: keras.KerasTensor, boxes: int, classes: int, name: str, first: float | None
) -> keras.KerasTensor:
    """Offsets and logits of a map's default boxes, [batch, boxes, 5 + classes]."""

    def conv(channels: int, part: str) -> keras.KerasTensor:
        normal = keras.initializers.RandomNormal
        weights = "glorot_uniform" if first is None else normal(stddev=first)
        told = {"padding": "same", "kernel_initializer": weights}
        found = layers.Conv2D(boxes * channels, 3, name=f"{name}_{part}", **told)(x)
        return layers.Reshape((-1, channels), name=f"{name}_{part}_rows")(found)

    offsets, logits = conv(4, "offsets"), conv(classes + 1, "logits")
    return layers.Concatenate(name=name)([offsets, logits])
