"""Regions of Faster R-CNN: anchors, what they match, sampling, proposals, RoI align.

Ren, He, Girshick and Sun, "Faster R-CNN" (2015), sections 3.1 and 3.2; RoI align from
He, Gkioxari, Dollar and Girshick, "Mask R-CNN" (2017), section 3. All shapes are fixed,
so that a compiled step can hold them; what is missing is padded and masked. No layers
and no loss. Boxes are as `boxes` has them; objects of class 0 are padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.boxes import area, corners, decode, jaccard

ANCHOR_OBJECT, ANCHOR_BACKGROUND = 0.7, 0.3  # section 3.1.2
REGION_OBJECT = 0.5  # Fast R-CNN, section 2.3
SUPPRESSED = 0.7  # section 3.2: proposals that overlap by more are one
LEAST_SIDE = 0.01  # of a proposal; the authors' code drops smaller ones too
# Offsets from anchors are not divided by anything.
PLAIN = np.ones(4, np.float32)


def anchors(
    side: tuple[int, int], scales: Sequence[float], ratios: Sequence[float]
) -> np.ndarray:
    """Returns the centred anchors [anchors, 4] (float32), cell by cell.

    Section 3.1.1: at each cell one of every scale and aspect ratio.

    Args:
      side: height and width of the feature map, in cells.
      scales: square roots of the anchors' areas, as fractions of the image's.
      ratios: heights over widths.
    """
    sizes = [(s * np.sqrt(r), s / np.sqrt(r)) for s in scales for r in ratios]
    rows, columns = ((np.arange(n) + 0.5) / n for n in side)
    cells = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)[:, :, None]
    cells = cells.repeat(len(sizes), 2)
    shapes = np.broadcast_to(np.array(sizes), cells.shape)
    return np.concatenate([cells, shapes], -1).reshape(-1, 4).astype(np.float32)


def inside(found: np.ndarray, border: float = 0.0) -> np.ndarray:
    """Which centred anchors do not reach beyond the image by more than `border`."""
    half = found[:, 2:] / 2
    low, high = found[:, :2] - half, found[:, :2] + half
    return ((low >= -border) & (high <= 1 + border)).all(1)


def match_anchors(
    found: np.ndarray, usable: np.ndarray, boxes: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Section 3.1.2: an anchor is positive above 0.7 or if no other overlaps more.

    Args:
      found: centred anchors, [anchors, 4].
      usable: which may match at all, [anchors].
      boxes: of objects, [batch, objects, 4].
      labels: their classes, [batch, objects].

    Returns:
      Whether each anchor is positive, whether it is negative [batch, anchors], and the
      box that it matches (its own if it is not positive) [batch, anchors, 4].
    """
    own = corners(found)
    overlap = _overlap(own, boxes, labels) * tf.cast(usable, tf.float32)[:, None]
    most = tf.reduce_max(overlap, 1, keepdims=True)
    leads = tf.reduce_any((overlap == most) & (most > 0), 2)
    best = tf.reduce_max(overlap, 2)
    positive = (best >= ANCHOR_OBJECT) | leads
    negative = usable & (best < ANCHOR_BACKGROUND) & ~positive
    matched = tf.gather(boxes, tf.argmax(overlap, 2), batch_dims=1)
    return positive, negative, tf.where(positive[..., None], matched, own)


def match_regions(
    regions: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Fast R-CNN, section 2.3: a region has the class that it overlaps by half.

    Args:
      regions: [batch, regions, 4].
      boxes: of objects, [batch, objects, 4].
      labels: their classes, [batch, objects].

    Returns:
      Classes, 0 for the background [batch, regions], and the boxes matched (the
      regions' own for the background) [batch, regions, 4].
    """
    overlap = _overlap(regions, boxes, labels)
    best = tf.argmax(overlap, 2)
    positive = tf.reduce_max(overlap, 2) >= REGION_OBJECT
    classes = tf.where(positive, tf.gather(labels, best, batch_dims=1), 0)
    matched = tf.gather(boxes, best, batch_dims=1)
    return classes, tf.where(positive[..., None], matched, regions)


def sample(
    positive: tf.Tensor, negative: tf.Tensor, quota: tuple[int, int], seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses some positives, then negatives until there are enough, at random.

    Args:
      positive: which are positive, [batch, rows].
      negative: which are negative, [batch, rows].
      quota: how many positives at most, and how many in all.
      seed: int32 [2]; the same seed chooses the same.

    Returns:
      Which positives and which negatives are chosen, both [batch, rows].
    """
    draw = tf.random.stateless_uniform(tf.shape(positive), seed)
    most, total = quota
    positives = positive & (_rank(draw, positive) < most)
    count = tf.reduce_sum(tf.cast(positives, tf.int32), 1, keepdims=True)
    return positives, negative & (_rank(draw, negative) < total - count)


def propose(
    objectness: tf.Tensor, offsets: tf.Tensor, found: np.ndarray, sizes: tuple[int, int]
) -> tf.Tensor:
    """Section 3.2: the best boxes after non-maximum suppression, [batch, count, 4].

    Args:
      objectness: logits of the anchors, [batch, anchors].
      offsets: from the anchors, [batch, anchors, 4].
      found: centred anchors, [anchors, 4].
      sizes: how many of the best are looked at, and how many are kept; rows that are
        not filled are boxes without area.
    """
    boxes = tf.clip_by_value(decode(offsets, found, PLAIN), 0.0, 1.0)
    side = tf.reduce_min(boxes[..., 2:] - boxes[..., :2], -1)
    scores = tf.where(side >= LEAST_SIDE, tf.sigmoid(objectness), 0.0)
    candidates, count = (min(size, len(found)) for size in sizes)
    scores, best = tf.math.top_k(scores, candidates)
    boxes = tf.gather(boxes, best, batch_dims=1)
    kept, counts = tf.image.non_max_suppression_padded(
        boxes,
        scores,
        count,
        iou_threshold=SUPPRESSED,
        score_threshold=0.0,
        pad_to_max_output_size=True,
        sorted_input=True,
        canonicalized_coordinates=True,
        tile_size=min(512, candidates),
    )
    filled = tf.range(count) < counts[:, None]
    return tf.where(filled[..., None], tf.gather(boxes, kept, batch_dims=1), 0.0)


def usable(regions: tf.Tensor) -> tf.Tensor:
    """Which regions have an area, and so are no padding."""
    return area(regions) > 0


def roi_align(
    features: tf.Tensor, boxes: tf.Tensor, *, size: int = 7, samples: int = 2
) -> tf.Tensor:
    """Features of boxes at `size` by `size` bins, [batch, boxes, size, size, channels].

    Each bin is the mean of `samples` by `samples` points interpolated bilinearly; as
    that is separable, it is a product with a matrix for each axis, whose gradient needs
    no scattering.

    Args:
      features: [batch, height, width, channels].
      boxes: [batch, boxes, 4]; points beyond the map take its border.
      size: bins along each side of a box.
      samples: points along each side of a bin.
    """
    height, width = features.shape[1:3]
    rows = _bins(boxes[..., 0], boxes[..., 2], height, (size, samples))
    columns = _bins(boxes[..., 1], boxes[..., 3], width, (size, samples))
    found = tf.einsum("bnyh,bhwc->bnywc", rows, features)
    return tf.einsum("bnxw,bnywc->bnyxc", columns, found)


def _bins(
    low: tf.Tensor, high: tf.Tensor, cells: int, sizes: tuple[int, int]
) -> tf.Tensor:
    """Weight of each cell in each bin, [batch, boxes, size, cells]."""
    size, samples = sizes
    steps = (np.arange(size * samples, dtype=np.float32) + 0.5) / (size * samples)
    points = low[..., None] + (high - low)[..., None] * steps
    # Cell i has its middle at (i + 1/2) / cells.
    points = tf.clip_by_value(points * cells - 0.5, 0.0, cells - 1.0)
    distance = tf.abs(points[..., None] - np.arange(cells, dtype=np.float32))
    near = tf.maximum(1.0 - distance, 0.0)
    shape = tf.concat([tf.shape(low), [size, samples, cells]], 0)
    return tf.reduce_mean(tf.reshape(near, shape), -2)


def _overlap(regions: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Jaccard overlap of regions and objects, 0 for padding of either."""
    real = tf.cast(labels > 0, tf.float32)[:, None]
    return jaccard(regions, boxes) * real


def _rank(draw: tf.Tensor, among: tf.Tensor) -> tf.Tensor:
    """Place of each row in the order of `draw`, those of `among` first."""
    order = tf.argsort(tf.where(among, draw, 2.0), 1, stable=True)
    return tf.argsort(order, 1, stable=True)
