"""What the two detectors share: scenes, batches of them, mean average precision.

No model. What is difficult is trained on and not counted, as VOC has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from convergence import metrics, task
from convergence.data import scenes
from convergence.families import Size
from convergence.trivial.boxes import mean_boxes


def load(size: Size, directory: Path | None) -> scenes.Scenes:
    return scenes.load(directory, **size.data)


def rows(split: scenes.Split, size: Size, seed: int, step: int) -> np.ndarray:
    """The rows of a step's batch."""
    return task.rows(seed, step, batch=size.batch, count=len(split))


def trivial(data: scenes.Scenes, size: Size) -> dict[str, float]:
    """Average precision by class of the same boxes in every image: the mean ones."""
    found = mean_boxes(data.train.boxes, data.train.labels, data.classes)
    return judged(data, [found] * len(data.test))


def precision(
    data: scenes.Scenes,
    detect: Callable[[tf.Tensor], tuple[tf.Tensor, ...]],
    batch: int,
) -> dict[str, float]:
    """Average precision by class on the test split, by VOC 2007's rule.

    Args:
      data: the scenes.
      detect: images [batch, side, side, 3] to boxes, scores, classes and counts.
      batch: images at a time; the last ones are filled up.
    """
    split, count = data.test, len(data.test)
    found: list[Any] = []
    for start in range(0, count, batch):
        chosen = np.arange(start, start + batch).clip(max=count - 1)
        told = detect(tf.convert_to_tensor(split.pixels(chosen)))
        for boxes, scores, kinds, number in zip(
            *(part.numpy() for part in told), strict=True
        ):
            some = slice(int(number))
            found.append((boxes[some], scores[some], kinds[some]))
    return judged(data, found[:count])


def judged(data: scenes.Scenes, found: Sequence[metrics.Found]) -> dict[str, float]:
    """Average precision by class of what was found in each image of the test split."""
    split = data.test
    truth = [
        (boxes[labels > 0], labels[labels > 0], hard[labels > 0])
        for boxes, labels, hard in zip(
            split.boxes, split.labels, split.difficult, strict=True
        )
    ]
    each = metrics.average_precisions(found, truth, classes=data.classes)
    return {data.kinds[kind - 1]: value for kind, value in each.items()}
