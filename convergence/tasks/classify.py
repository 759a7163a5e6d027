"""Classification of images by a residual network; accuracy.

No augmentation, so that what a step sees is rows of the data.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

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
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(data.train))
        return data.train.take(chosen)

    def evaluate() -> float:
        call = tf.function(lambda x: model(x, training=False))
        count, right = len(data.test), 0
        for start in range(0, count, size.batch):
            # The last batch is filled up, so that one trace serves all.
            chosen = np.arange(start, start + size.batch) % count
            x, y = data.test.take(chosen)
            found = call(tf.convert_to_tensor(x)).numpy().argmax(-1) == y
            right += int(found[: count - start].sum())
        return right / count

    return task.supervised(model, resnet.LOSS(), optimizer, batch, evaluate)
