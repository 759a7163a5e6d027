"""Boxes that stand in every image alike: the means of where a class's objects are.

No pixel is looked at. Boxes are (top, left, bottom, right) in fractions of the image.
"""

from __future__ import annotations

import numpy as np

CLUSTERS = 20  # of a class
ROUNDS = 20


def mean_boxes(
    boxes: np.ndarray, labels: np.ndarray, classes: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [n, 4], scores [n] and classes [n], best first within a class.

    A class's boxes are put into clusters; a cluster's mean is a box, and its score is
    the number of boxes in it for each image.

    Args:
      boxes: of the images to learn from, [images, objects, 4].
      labels: their classes, [images, objects]; 0 is padding.
      classes: number of classes.
      seed: of the first means.
    """
    means, scores, kinds = [], [], []
    for kind in range(1, classes + 1):
        own = boxes[labels == kind].astype(np.float64)
        if not len(own):
            continue
        found, counts = _clusters(own, np.random.default_rng(seed))
        order = np.argsort(-counts, kind="stable")
        means.append(found[order])
        scores.append(counts[order] / len(boxes))
        kinds.append(np.full(len(found), kind))
    return np.concatenate(means), np.concatenate(scores), np.concatenate(kinds)


def _clusters(
    points: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Lloyd's k-means from points drawn at random: the means, and how many each has."""
    means = random.permutation(np.unique(points, axis=0))[:CLUSTERS]
    for _ in range(ROUNDS):
        gaps = np.square(points[:, None] - means).sum(axis=-1)
        near = np.argmin(gaps, axis=1) == np.arange(len(means))[:, None]
        own = near[near.any(axis=1)]
        means = np.stack([points[some].mean(axis=0) for some in own])
    return means, own.sum(axis=1)
