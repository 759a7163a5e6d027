"""Scenes of bright rectangles: examples for models that find objects.

Enough to see that a model trains; no photographs and no files.
"""

from __future__ import annotations

import numpy as np

Shape = tuple[int, int, int]


def rectangles(
    batch: int, seed: int, sizes: tuple[Shape, int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns images, boxes [batch, objects, 4] and labels [batch, objects] from 1.

    Images are noise with rectangles, whose channel and brightness tell the class.

    Args:
      batch: images.
      seed: of the random numbers.
      sizes: shape of an image, number of classes, objects of an image.
    """
    shape, classes, objects = sizes
    random = np.random.default_rng(seed)
    images = random.standard_normal((batch, *shape), dtype=np.float32) * 0.1
    corner = random.uniform(0.0, 0.6, (batch, objects, 2))
    size = random.uniform(0.15, 0.4, (batch, objects, 2))
    boxes = np.concatenate([corner, corner + size], -1).astype(np.float32)
    labels = random.integers(1, classes + 1, (batch, objects)).astype(np.int32)
    for image, some, kinds in zip(images, boxes, labels, strict=True):
        cells = (some * np.array(shape[:2] * 2)).astype(int)
        for (top, left, bottom, right), kind in zip(cells, kinds, strict=True):
            level, channel = divmod(kind - 1, shape[2])
            image[top:bottom, left:right, channel] += 1.0 + level
    return images, boxes, labels
