"""Classification of images by a residual network; accuracy.

No augmentation, so that what a step sees is rows of the data.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from convergence import task
from convergence.data import images
from convergence.families import Size
from models import resnet


def load(size: Size, directory: Path | None) -> images.Images:
    return images.load(directory, **size.data)


def make(data: images.Images, size: Size) -> task.Task:
    shape = (data.side, data.side, data.channels)
    sizes = {"classes": data.classes, "input_shape": shape, **size.model}
    if "blocks" in sizes:
        model = resnet.resnet50(**sizes)
    else:
        model = resnet.resnet_cifar(**sizes)
    infer = task.inference(model)
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(data.train))
        return data.train.take(chosen)

    def evaluate() -> float:
        count, right = len(data.test), 0
        for start in range(0, count, 1000):  # a large set does not fit into memory
            x, y = data.test.take(np.arange(start, min(start + 1000, count)))
            right += int((task.outputs(infer, (x,), size.batch).argmax(-1) == y).sum())
        return right / count

    return task.supervised(model, resnet.LOSS(), optimizer, batch, evaluate)
