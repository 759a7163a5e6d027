"""Faster R-CNN: a network that proposes regions and one that classifies them.

Ren, He, Girshick and Sun, "Faster R-CNN: Towards Real-Time Object Detection with Region
Proposal Networks" (2015): VGG-16's convolutions, shared by the region proposal network
and by the two heads (class and box) of Fast R-CNN, with RoI align for RoI pooling.
Trained end to end as section 3.2 calls approximate joint training: proposals are
constants to the gradient. What happens to boxes is in `regions`. No augmentation, no
pre-trained weights, no training loop.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from models import regions, scenes, vgg
from models.boxes import centred, decode, encode, smooth_l1

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What boxes there are and how many; the defaults are the paper's at 600 pixels.

    Attributes:
      scales: square roots of the anchors' areas, as fractions of the image's.
      ratios: the anchors' heights over widths.
      border: how far beyond the image an anchor may reach in training, as a fraction.
      anchors: anchors of an image that the loss looks at, at most half of them objects.
      candidates: best boxes that non-maximum suppression looks at.
      proposals: what it leaves at most: in training and else.
      regions: regions of an image that the loss looks at, at most a quarter objects.
    """

    scales: tuple[float, ...] = (0.2, 0.4, 0.8)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    border: float = 0.0
    anchors: int = 256
    candidates: int = 6000
    proposals: tuple[int, int] = (2000, 300)
    regions: int = 128


# Enough for images of 64 pixels.
SMALL = Settings(border=0.2, anchors=64, candidates=128, proposals=(64, 32), regions=32)


@keras.saving.register_keras_serializable("models")
class FasterRCNN(keras.Model):
    """The three networks and the anchors; called, it gives what the first two say."""

    def __init__(
        self,
        networks: tuple[keras.Model, keras.Model, keras.Model],
        settings: Settings,
    ) -> None:
        super().__init__(name="faster_rcnn")
        self.features, self.proposer, self.head = networks
        self.settings = settings
        self.anchors = regions.anchors(
            self.features.output.shape[1:3], settings.scales, settings.ratios
        )

    def call(self, images: tf.Tensor, training: bool = False) -> list[tf.Tensor]:
        """Objectness [batch, anchors] and offsets [batch, anchors, 4] of anchors."""
        return self.proposer(self.features(images, training=training))


def build(
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 3,
    width: int = 4,
    hidden: int = 32,
    stages: int = 5,
    normalize: bool = False,
    dropout: float = 0.0,
    settings: Settings = SMALL,
) -> FasterRCNN:
    """Returns the model; `losses` trains it and `detect` uses it.

    The paper's network is `input_shape=(600, 1000, 3), classes=20, width=64,
    hidden=4096, dropout=0.5, settings=Settings()`.

    Args:
      input_shape: height, width and channels of an image.
      classes: number of classes without the background.
      width: channels of the first stage of VGG-16; others are multiples of it.
      hidden: units of the dense layers before the heads.
      stages: of VGG-16; a cell has 2^(stages - 1) pixels, 16 in the paper.
      normalize: batch norm after each convolution of VGG-16, which training from
        scratch needs.
      dropout: fraction dropped after each dense layer; 0 adds no dropout.
      settings: boxes and how many.
    """
    images = keras.Input(input_shape, name="images")
    found = vgg.stages(images, width, normalize=normalize, count=stages)[-1]
    features = keras.Model(images, found, name="features")
    kinds = len(settings.scales) * len(settings.ratios)
    proposer = _proposer(found.shape[1:], kinds)
    head = _head((7, 7, found.shape[-1]), classes, hidden, dropout)
    model = FasterRCNN((features, proposer, head), settings)
    model.build((None, *input_shape))
    return model


def example_batch(
    batch: int,
    seed: int,
    *,
    input_shape: Shape = (64, 64, 3),
    classes: int = 3,
    objects: int = 3,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Returns images and (boxes [batch, objects, 4], labels [batch, objects]).

    The last object of each image is padding.
    """
    sizes = (input_shape, classes, objects)
    images, boxes, labels = scenes.rectangles(batch, seed, sizes)
    boxes[:, -1], labels[:, -1] = 0.0, 0
    return images, (boxes, labels)


def losses(
    model: FasterRCNN,
    images: tf.Tensor,
    boxes: tf.Tensor,
    labels: tf.Tensor,
    seed: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """The four losses of a training step, each a scalar; their sum is trained.

    Args:
      model: what `build` returned.
      images: [batch, height, width, channels].
      boxes: of objects, [batch, objects, 4].
      labels: their classes, [batch, objects], 1 and up; rows of class 0 are padding.
      seed: int32 [2], for the choice of anchors and regions.
    """
    features = model.features(images, training=True)
    objectness, offsets = model.proposer(features, training=True)
    first, second = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    found = _proposal_losses(model, (objectness, offsets), (boxes, labels), first)
    settings = model.settings
    sizes = (settings.candidates, settings.proposals[0])
    proposed = regions.propose(objectness, offsets, model.anchors, sizes)
    proposed = tf.stop_gradient(proposed)
    return found | _region_losses(model, features, proposed, (boxes, labels), second)


def loss(model: FasterRCNN, *batch: tf.Tensor) -> tf.Tensor:
    """The sum of `losses`, which takes the same; a scalar."""
    return tf.add_n(list(losses(model, *batch).values()))


def detect(
    model: FasterRCNN, images: tf.Tensor, *, most: int = 100
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Proposes, classifies, and suppresses what is found twice, class by class.

    Returns:
      Boxes [batch, most, 4], scores [batch, most], classes from 1 [batch, most] and
      numbers of detections [batch]; what is beyond the number is padding.
    """
    settings = model.settings
    features = model.features(images, training=False)
    objectness, offsets = model.proposer(features, training=False)
    sizes = (settings.candidates, settings.proposals[1])
    proposed = regions.propose(objectness, offsets, model.anchors, sizes)
    logits, shifts = _heads(model, features, proposed, training=False)
    boxes = decode(shifts, centred(proposed)[:, :, None])
    real = tf.cast(regions.usable(proposed), tf.float32)[..., None]
    found = tf.image.combined_non_max_suppression(
        tf.clip_by_value(boxes, 0.0, 1.0),
        tf.nn.softmax(logits)[..., 1:] * real,
        max_output_size_per_class=most,
        max_total_size=most,
        iou_threshold=0.3,  # both of the authors' code
        score_threshold=0.05,
    )
    boxes, scores, kinds, counts = found
    return boxes, scores, tf.cast(kinds, tf.int32) + 1, counts


def _proposer(shape: Shape, kinds: int) -> keras.Model:
    """The region proposal network: 3x3, then objectness and offsets of each anchor."""
    features = keras.Input(shape, name="features")
    normal = keras.initializers.RandomNormal(stddev=0.01)  # section 3.1.3
    options = {"kernel_initializer": normal, "padding": "same"}
    x = layers.Conv2D(shape[-1], 3, activation="relu", name="rpn_conv", **options)
    x = x(features)
    objectness = layers.Conv2D(kinds, 1, name="rpn_class", **options)(x)
    offsets = layers.Conv2D(4 * kinds, 1, name="rpn_box", **options)(x)
    found = [
        layers.Reshape((-1,), name="objectness")(objectness),
        layers.Reshape((-1, 4), name="offsets")(offsets),
    ]
    return keras.Model(features, found, name="proposer")


def _head(shape: Shape, classes: int, hidden: int, dropout: float) -> keras.Model:
    """Fast R-CNN: two dense layers, logits of classes, offsets for each class."""
    x = crops = keras.Input(shape, name="crops")
    x = layers.Flatten(name="flat")(x)
    for name in ("fc6", "fc7"):
        x = layers.Dense(hidden, "relu", kernel_initializer="he_normal", name=name)(x)
        x = layers.Dropout(dropout, name=f"{name}_dropout")(x) if dropout else x
    normals = [keras.initializers.RandomNormal(stddev=s) for s in (0.01, 0.001)]
    logits = layers.Dense(classes + 1, kernel_initializer=normals[0], name="class")(x)
    shifts = layers.Dense(4 * classes, kernel_initializer=normals[1], name="box")(x)
    shifts = layers.Reshape((classes, 4), name="shifts")(shifts)
    return keras.Model(crops, [logits, shifts], name="head")


def _heads(
    model: FasterRCNN, features: tf.Tensor, found: tf.Tensor, *, training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Logits [batch, regions, classes + 1], offsets [batch, regions, classes, 4]."""
    crops = regions.roi_align(features, found)
    flat = tf.reshape(crops, [-1, *crops.shape[2:]])
    logits, shifts = model.head(flat, training=training)
    rows = tf.shape(found)[:2]
    return tuple(
        tf.reshape(x, tf.concat([rows, x.shape[1:]], 0)) for x in (logits, shifts)
    )


def _proposal_losses(
    model: FasterRCNN,
    found: tuple[tf.Tensor, tf.Tensor],
    truth: tuple[tf.Tensor, tf.Tensor],
    seed: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Equation 1: the mean over the chosen anchors of the loss of class and of box.

    The paper's weight of 10 and its two divisors give both the same weight, as here.
    """
    (objectness, offsets), anchors, settings = found, model.anchors, model.settings
    may = regions.inside(anchors, settings.border)
    positive, negative, matched = regions.match_anchors(anchors, may, *truth)
    quota = (settings.anchors // 2, settings.anchors)
    chosen = regions.sample(positive, negative, quota, seed)
    objects, others = (tf.cast(x, tf.float32) for x in chosen)
    count = tf.maximum(tf.reduce_sum(objects + others), 1.0)
    kinds = tf.nn.sigmoid_cross_entropy_with_logits(objects, objectness)
    shifts = smooth_l1(offsets - encode(matched, anchors, regions.PLAIN))
    return {
        "rpn_class": tf.reduce_sum(kinds * (objects + others)) / count,
        "rpn_box": tf.reduce_sum(shifts * objects) / count,
    }


def _region_losses(
    model: FasterRCNN,
    features: tf.Tensor,
    proposed: tf.Tensor,
    truth: tuple[tf.Tensor, tf.Tensor],
    seed: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Fast R-CNN, equation 1: the mean over the chosen regions of class and box loss.

    The objects themselves are among the proposals, as in the authors' code.
    """
    found = tf.concat([proposed, truth[0]], 1)
    kinds, matched = regions.match_regions(found, *truth)
    positive, real = kinds > 0, regions.usable(found)
    size = min(model.settings.regions, found.shape[1])
    positive, negative = regions.sample(
        positive & real, ~positive & real, (size // 4, size), seed
    )
    chosen = 2 * tf.cast(positive, tf.int32) + tf.cast(negative, tf.int32)
    chosen, rows = tf.math.top_k(chosen, size)
    found, kinds, matched = (
        tf.gather(x, rows, batch_dims=1) for x in (found, kinds, matched)
    )
    logits, shifts = _heads(model, features, found, training=True)
    # What fills up has no size to divide by; it takes part as the whole image.
    found, matched = (
        tf.where((chosen > 0)[..., None], x, [0.0, 0.0, 1.0, 1.0])
        for x in (found, matched)
    )
    counted = tf.cast(chosen > 0, tf.float32)
    count = tf.maximum(tf.reduce_sum(counted), 1.0)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(kinds, logits)
    # One row of offsets, that of the object's class; none for the background.
    own = tf.one_hot(kinds - 1, shifts.shape[2]) * counted[..., None]
    goals = encode(matched, centred(found))
    return {
        "class": tf.reduce_sum(each * counted) / count,
        "box": tf.reduce_sum(own * smooth_l1(shifts - goals[:, :, None])) / count,
    }
