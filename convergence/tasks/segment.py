"""Segmentation by a fully convolutional network; mean intersection over union.

Classes are those of the scenes and the background.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from convergence import metrics, task
from convergence.data import scenes
from convergence.families import Size
from convergence.trivial import pixels
from models import fcn


def load(size: Size, directory: Path | None) -> scenes.Scenes:
    return scenes.load(directory, masks=True, **size.data)


def trivial(data: scenes.Scenes, size: Size) -> dict[str, float]:
    """Overlap by class of one mask for all images: each place's most frequent class."""
    classes = data.classes + 1
    found = pixels.most_frequent(data.train.masks, classes)
    masks = data.test.masks
    found = np.broadcast_to(found, masks.shape)
    return _named(data, metrics.confusion(masks, found, classes))


def make(data: scenes.Scenes, size: Size) -> task.Task:
    shape, classes = (data.side, data.side, 3), data.classes + 1
    model = fcn.build(input_shape=shape, classes=classes, **size.model)
    infer, train, test = task.inference(model), data.train, data.test
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(train))
        return train.pixels(chosen), train.masks[chosen].astype(np.int32)

    def evaluate() -> task.Metric:
        matrix = np.zeros((classes, classes), np.int64)
        for start in range(0, len(test), 100):
            chosen = np.arange(start, min(start + 100, len(test)))
            logits = task.outputs(infer, (test.pixels(chosen),), size.batch)
            found = logits.argmax(-1)
            matrix += metrics.confusion(test.masks[chosen], found, classes)
        return _named(data, matrix)

    return task.supervised(model, fcn.LOSS(), optimizer, batch, evaluate)


def _named(data: scenes.Scenes, matrix: np.ndarray) -> dict[str, float]:
    names = ("background", *data.kinds)
    return {names[kind]: iou for kind, iou in metrics.class_ious(matrix).items()}
