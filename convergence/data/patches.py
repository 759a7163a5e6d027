"""Parts of training images with objects, sampled as SSD does, half of them mirrored.

Liu et al. (2016), section 2.2, "Data augmentation", without its photometric
distortions. Where a part lies is decided by the caller's random numbers alone.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# The least overlap with an object that a part has to have; None: it is the whole image.
OVERLAPS = (None, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
LEAST_SIDE, MOST_RATIO = 0.1, 2.0  # "between [0.1, 1]", "between 1/2 and 2"
_TRIES = 50  # the paper says nothing of parts that cannot be had; then it is the whole
_WHOLE = np.array([0.0, 0.0, 1.0, 1.0], np.float32)


def sampled(
    images: np.ndarray,
    boxes: np.ndarray,
    labels: np.ndarray,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns images and objects of parts, in the shapes of what is given.

    An object stays if its centre is in the part, and what is outside of it is cut off.

    Args:
      images: [n, side, side, 3] float32.
      boxes: (top, left, bottom, right) in fractions of the image, [n, objects, 4]; 0 in
        padding.
      labels: classes of the objects, from 1, [n, objects]; 0 in padding.
      random: decides which parts.
    """
    count, side = images.shape[:2]
    pairs = zip(boxes, labels, strict=True)
    parts = np.stack([_part(each[kinds > 0], random) for each, kinds in pairs])
    cut = tf.image.crop_and_resize(images, parts, np.arange(count), [side, side])
    boxes, labels = _within(boxes, labels, parts)
    mirrored = random.random(count) < 0.5
    pixels = np.where(mirrored[:, None, None, None], cut[:, :, ::-1], cut)
    flipped = np.stack(
        [boxes[..., 0], 1.0 - boxes[..., 3], boxes[..., 2], 1.0 - boxes[..., 1]], -1
    )
    flipped[labels == 0] = 0.0
    return pixels, np.where(mirrored[:, None, None], flipped, boxes), labels


def _part(boxes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    least = OVERLAPS[random.integers(len(OVERLAPS))]
    if least is None or not len(boxes):
        return _WHOLE
    for _ in range(_TRIES):
        height, width = random.uniform(LEAST_SIDE, 1.0, 2)
        if not 1 / MOST_RATIO <= width / height <= MOST_RATIO:
            continue
        top, left = random.uniform(0.0, 1.0 - height), random.uniform(0.0, 1.0 - width)
        part = np.array([top, left, top + height, left + width], np.float32)
        if _overlap(boxes, part).max() >= least and _inside(boxes, part).any():
            return part
    return _WHOLE


def _inside(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Whether the centre of each box is in a part."""
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    return ((middle > part[..., :2]) & (middle < part[..., 2:])).all(-1)


def _overlap(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Jaccard overlap of each box with a part."""
    shared = np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])
    common = shared.clip(min=0.0).prod(-1)
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(-1) + (part[2:] - part[:2]).prod()
    return common / (sizes - common)


def _within(
    boxes: np.ndarray, labels: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in fractions of parts, and labels; of objects that are not in them 0."""
    parts = parts[:, None]
    kept = (labels > 0) & _inside(boxes, parts)
    cut = boxes.clip(np.tile(parts[..., :2], 2), np.tile(parts[..., 2:], 2))
    sizes = np.tile(parts[..., 2:] - parts[..., :2], 2)
    moved = (cut - np.tile(parts[..., :2], 2)) / sizes
    return np.where(kept[..., None], moved, 0.0).astype(np.float32), labels * kept
