"""Pixels that know nothing of one another: what stands at each place of an image.

No pixel's neighbours are looked at, and no image is classified.
"""

from __future__ import annotations

import numpy as np


def independent(images: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Images each pixel of which is drawn from that place of the images given.

    Args:
      images: [n, height, width, channels].
      count: how many to draw.
      seed: of the draw.

    Returns:
      [count, height, width, channels]; the channels of a pixel are of one image.
    """
    random = np.random.default_rng(seed)
    height, width = images.shape[1:3]
    rows = random.integers(len(images), size=(count, height, width))
    return images[rows, np.arange(height)[:, None], np.arange(width)]


def most_frequent(masks: np.ndarray, classes: int) -> np.ndarray:
    """The class that each place of the masks [n, height, width] has most often.

    Args:
      masks: classes; numbers from `classes` up (void) do not count.
      classes: number of classes; of two that are as frequent, the lower one.
    """
    counts = [(masks == kind).sum(axis=0) for kind in range(classes)]
    return np.argmax(counts, axis=0)
