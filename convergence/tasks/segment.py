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
from models import fcn


def load(size: Size, directory: Path | None) -> scenes.Scenes:
    return scenes.load(directory, masks=True, **size.data)


def make(data: scenes.Scenes, size: Size) -> task.Task:
    shape, classes = (data.side, data.side, 3), data.classes + 1
    model = fcn.build(input_shape=shape, classes=classes, **size.model)
    infer, train, test = task.inference(model), data.train, data.test
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(train))
        return train.pixels(chosen), train.masks[chosen].astype(np.int32)

    def evaluate() -> float:
        matrix = np.zeros((classes, classes), np.int64)
        for start in range(0, len(test), 100):
            chosen = np.arange(start, min(start + 100, len(test)))
            logits = task.outputs(infer, (test.pixels(chosen),), size.batch)
            found = logits.argmax(-1)
            matrix += metrics.confusion(test.masks[chosen], found, classes)
        return metrics.mean_iou(matrix)

    return task.supervised(model, fcn.LOSS(), optimizer, batch, evaluate)
