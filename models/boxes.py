"""Boxes: their overlap, and the offsets that lead from one to another.

What SSD, Faster R-CNN and their evaluation agree on. No layers, no matching, no loss.
Boxes are (top, left, bottom, right) as fractions of the image; "centred" ones are (row,
column, height, width). Overlap and offsets do not change with the unit of either axis,
so that fractions serve images of any shape.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

# Of offsets of the centre and of the size: SSD's "variance" and the standard deviations
# by which Faster R-CNN's second stage divides, the same in both authors' code.
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
# A size grows at most so far in one step, a bound of Detectron's: no overflow of exp.
MOST_GROWTH = math.log(1000 / 16)


def encode(
    boxes: tf.Tensor, defaults: tf.Tensor, variances: np.ndarray = VARIANCES
) -> tf.Tensor:
    """Offsets that lead from centred boxes to boxes, [..., 4]; SSD's equation 2."""
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    size = boxes[..., 2:] - boxes[..., :2]
    shift = (middle - defaults[..., :2]) / defaults[..., 2:]
    growth = tf.math.log(size / defaults[..., 2:])
    return tf.concat([shift, growth], -1) / variances


def decode(
    offsets: tf.Tensor, defaults: tf.Tensor, variances: np.ndarray = VARIANCES
) -> tf.Tensor:
    """Boxes that offsets lead to from centred boxes, [..., 4]; undoes `encode`."""
    offsets = offsets * variances
    middle = offsets[..., :2] * defaults[..., 2:] + defaults[..., :2]
    size = tf.exp(tf.minimum(offsets[..., 2:], MOST_GROWTH)) * defaults[..., 2:]
    return corners(tf.concat([middle, size], -1))


def corners(centred: tf.Tensor) -> tf.Tensor:
    """Boxes of centred boxes, [..., 4]."""
    middle, half = centred[..., :2], centred[..., 2:] / 2
    return tf.concat([middle - half, middle + half], -1)


def centred(boxes: tf.Tensor) -> tf.Tensor:
    """Centred boxes of boxes, [..., 4]; undoes `corners`."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return tf.concat([(low + high) / 2, high - low], -1)


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Areas [...] of boxes [..., 4]; 0 where a box is inside out."""
    return tf.reduce_prod(tf.maximum(boxes[..., 2:] - boxes[..., :2], 0.0), -1)


def jaccard(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Intersection over union of boxes [..., m, 4] and [..., n, 4], as [..., m, n].

    It is 0 for two boxes without area.
    """
    low = tf.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = tf.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    shared = area(tf.concat([low, high], -1))
    union = area(a)[..., :, None] + area(b)[..., None, :] - shared
    return tf.math.divide_no_nan(shared, union)


def smooth_l1(difference: tf.Tensor) -> tf.Tensor:
    """The sum of smooth L1 (Girshick, "Fast R-CNN", 2015) over the last axis."""
    size = tf.abs(difference)
    inner = tf.minimum(size, 1.0)
    return tf.reduce_sum(inner * (size - 0.5 * inner), -1)
