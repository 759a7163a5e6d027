"""Default boxes of SSD: where they are, what they match, what is found with them.

Liu et al., "SSD: Single Shot MultiBox Detector" (2016), sections 2.2 and 3.1. No layers
and no loss. Boxes are as `boxes` has them. Class 0 is the background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.boxes import corners, decode, encode, jaccard

OVERLAP = 0.5  # section 2.2: a box matches what it overlaps by more
# Section 2.2 gives the scales; 0.1 for the first map is section 3.1's.
FIRST_SCALE, LEAST_SCALE, MOST_SCALE = 0.1, 0.2, 0.9


def boxes_a_cell(maps: int) -> list[int]:
    """Default boxes at each cell of each of so many feature maps, 4 or 6."""
    return [4 if index in (0, maps - 2, maps - 1) else 6 for index in range(maps)]


def _scales(maps: int) -> list[float]:
    """The scale of each feature map, equation 4, and one beyond the last."""
    step = (MOST_SCALE - LEAST_SCALE) / max(maps - 2, 1)
    return [FIRST_SCALE, *(LEAST_SCALE + step * index for index in range(maps))]


def default_boxes(sides: Sequence[int]) -> np.ndarray:
    """Returns the centred default boxes [boxes, 4] (float32), as the heads order them.

    Section 2.2: aspect ratios 1, 2 and 1/2, also 3 and 1/3 on all but the first map and
    the last two, and a square of the geometric mean of this scale and the next.

    Args:
      sides: height and width, in cells, of each feature map, the largest first.
    """
    scales, counts = _scales(len(sides)), boxes_a_cell(len(sides))
    boxes = []
    for index, side in enumerate(sides):
        ratios = (1.0, 2.0, 0.5, 3.0, 1.0 / 3.0)[: counts[index] - 1]
        scale, square = scales[index], math.sqrt(scales[index] * scales[index + 1])
        sizes = [(scale / math.sqrt(r), scale * math.sqrt(r)) for r in ratios]
        sizes.append((square, square))
        middle = (np.arange(side) + 0.5) / side
        rows, columns = np.meshgrid(middle, middle, indexing="ij")
        cells = np.stack([rows, columns], -1)[:, :, None].repeat(len(sizes), 2)
        shapes = np.broadcast_to(np.array(sizes), cells.shape)
        boxes.append(np.concatenate([cells, shapes], -1).reshape(-1, 4))
    return np.concatenate(boxes).astype(np.float32)


def targets(boxes: tf.Tensor, labels: tf.Tensor, defaults: np.ndarray) -> tf.Tensor:
    """Matches the objects of each image; returns targets [batch, boxes, 5] (float32).

    Section 2.2: each object gets the default box that it overlaps best, and every other
    default box the object that it overlaps best, by more than `OVERLAP`.

    Args:
      boxes: boxes of the objects, [batch, objects, 4]; there may be none.
      labels: their classes, [batch, objects], 1 and up; rows of class 0 are padding.
      defaults: centred default boxes, [boxes, 4].
    """
    boxes = tf.cast(boxes, tf.float32)
    # A last object, of the background and far from everything: what is left over.
    boxes = tf.pad(boxes, [[0, 0], [0, 1], [0, 0]], constant_values=-1.0)
    labels = tf.pad(tf.cast(labels, tf.int32), [[0, 0], [0, 1]])
    last = tf.shape(labels)[1] - 1
    real = labels > 0
    overlaps = jaccard(boxes, corners(defaults)) * tf.cast(real, tf.float32)[..., None]
    best = tf.argmax(overlaps, 1, output_type=tf.int32)
    best = tf.where(tf.reduce_max(overlaps, 1) > OVERLAP, best, last)
    own = tf.argmax(overlaps, 2, output_type=tf.int32)
    owns = tf.one_hot(own, len(defaults), True, False, dtype=tf.bool) & real[..., None]
    # Of several objects that want one box, the last has it.
    owner = tf.reduce_max(tf.where(owns, tf.range(last + 1)[:, None], -1), 1)
    best = tf.where(owner >= 0, owner, best)
    found = tf.gather(labels, best, batch_dims=1)[..., None]
    nearest = tf.where(
        found > 0, tf.gather(boxes, best, batch_dims=1), corners(defaults)
    )
    offsets = tf.where(found > 0, encode(nearest, tf.convert_to_tensor(defaults)), 0.0)
    return tf.concat([offsets, tf.cast(found, tf.float32)], -1)


def detect(
    predictions: tf.Tensor, defaults: tf.Tensor, *, most: int = 200
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decodes predictions and suppresses what is found twice, class by class.

    Section 3.1: confidence above 0.01, overlap below 0.45, at most 200 an image.

    Args:
      predictions: what the model returns, [batch, boxes, 4 + classes + 1].
      defaults: centred default boxes, [boxes, 4].
      most: detections of an image.

    Returns:
      Boxes [batch, most, 4], scores [batch, most], classes from 1 [batch, most] and
      numbers of detections [batch]; what is beyond the number is padding.
    """
    boxes = decode(predictions[..., :4], defaults)
    scores = tf.nn.softmax(predictions[..., 4:])[..., 1:]
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None],
        scores,
        max_output_size_per_class=most,
        max_total_size=most,
        iou_threshold=0.45,
        score_threshold=0.01,
    )
    boxes, scores, kinds, counts = found
    return boxes, scores, tf.cast(kinds, tf.int32) + 1, counts
