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

from models import default_boxes

Shape = tuple[int, int, int]

NEGATIVES = 3  # section 2.2: at most so many negatives to a positive


def build(
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 3,
    width: int = 4,
    normalize: bool = False,
) -> keras.Model:
    """Returns images [batch, height, width, 3] to [batch, boxes, 4 + classes + 1].

    The paper's SSD300 is `input_shape=(300, 300, 3), classes=20, width=64`.

    Args:
      input_shape: height, width and channels of an image; square, at least 33.
      classes: number of classes without the background.
      width: channels of the first stage; the others are multiples of it.
      normalize: batch norm after each convolution of the base network and of the extra
        layers, which training from scratch needs.

    Raises:
      ValueError: an image that is not square or too small.
    """
    counts = default_boxes.boxes_a_cell(len(map_sides(input_shape)))
    images = keras.Input(input_shape, name="images")
    maps = _feature_maps(images, width, normalize)
    found = [
        _head(x, count, classes, f"head{index}")
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
    """Returns images [batch, *input_shape] and targets [batch, boxes, 5], both float32.

    Images are noise with bright rectangles, whose channel and size tell the class.
    """
    random = np.random.default_rng(seed)
    images = random.standard_normal((batch, *input_shape), dtype=np.float32) * 0.1
    corner = random.uniform(0.0, 0.6, (batch, objects, 2))
    size = random.uniform(0.15, 0.4, (batch, objects, 2))
    boxes = np.concatenate([corner, corner + size], -1).astype(np.float32)
    labels = random.integers(1, classes + 1, (batch, objects)).astype(np.int32)
    side = input_shape[0]
    for image, some, kinds in zip(images, boxes, labels, strict=True):
        cells = (some * side).astype(int)
        for (top, left, bottom, right), kind in zip(cells, kinds, strict=True):
            channel, level = (kind - 1) % input_shape[2], (kind - 1) // input_shape[2]
            image[top:bottom, left:right, channel] += 1.0 + level
    defaults = default_boxes.default_boxes(map_sides(input_shape))
    pairs = zip(boxes, labels, strict=True)
    targets = [default_boxes.target(some, kinds, defaults) for some, kinds in pairs]
    return images, np.stack(targets)


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


def smooth_l1(difference: tf.Tensor) -> tf.Tensor:
    """The sum of smooth L1 (Girshick, 2015) over the last axis."""
    size = ops.abs(difference)
    inner = ops.minimum(size, 1.0)
    return ops.sum(inner * (size - 0.5 * inner), axis=-1)


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
    x: keras.KerasTensor, width: int, normalize: bool
) -> list[keras.KerasTensor]:
    """VGG-16 with fc6 and fc7 as convolutions, and the extra layers (figure 2)."""
    maps = []
    for stage, count in enumerate((2, 2, 3, 3, 3)):
        for block in range(count):
            name = f"conv{stage + 1}_{block + 1}"
            x = _conv(x, width * min(2**stage, 8), 3, name, normalize)
        if stage == 3:
            maps.append(L2Scale(name="conv4_3_scale")(x))
        pool, stride = (3, 1) if stage == 4 else (2, 2)
        x = layers.MaxPooling2D(pool, stride, "same", name=f"pool{stage + 1}")(x)
    x = _conv(x, 16 * width, 3, "fc6", normalize, dilation_rate=6)
    maps.append(_conv(x, 16 * width, 1, "fc7", normalize))
    while maps[-1].shape[1] >= 3:
        maps.append(_extra(maps[-1], width, f"conv{len(maps) + 6}", normalize))
    return maps


def _extra(
    x: keras.KerasTensor, width: int, name: str, normalize: bool
) -> keras.KerasTensor:
    """1x1 to fewer channels, then 3x3: half the side, or from 5 on two cells less."""
    first = name == "conv8"
    halves = {"strides": 2} if x.shape[1] > 5 else {"padding": "valid"}
    x = _conv(x, (4 if first else 2) * width, 1, f"{name}_1", normalize)
    return _conv(x, (8 if first else 4) * width, 3, f"{name}_2", normalize, **halves)


def _conv(
    x: keras.KerasTensor,
    channels: int,
    kernel: int,
    name: str,
    normalize: bool,
    **options: object,
) -> keras.KerasTensor:
    """Convolution, batch norm if wanted, ReLU."""
    options = {"padding": "same", "kernel_initializer": "he_normal", **options}
    x = layers.Conv2D(
        channels, kernel, use_bias=not normalize, name=f"{name}_conv", **options
    )(x)
    if normalize:
        x = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)


def _head(
    x: keras.KerasTensor, boxes: int, classes: int, name: str
) -> keras.KerasTensor:
    """Offsets and logits of a map's default boxes, [batch, boxes, 5 + classes]."""
    offsets = layers.Conv2D(4 * boxes, 3, padding="same", name=f"{name}_offsets")(x)
    offsets = layers.Reshape((-1, 4), name=f"{name}_offsets_rows")(offsets)
    kinds = (classes + 1) * boxes
    logits = layers.Conv2D(kinds, 3, padding="same", name=f"{name}_logits")(x)
    logits = layers.Reshape((-1, classes + 1), name=f"{name}_logits_rows")(logits)
    return layers.Concatenate(name=name)([offsets, logits])
