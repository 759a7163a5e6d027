"""Faster R-CNN on scenes; mean average precision.

The choice of anchors and regions that the loss looks at depends on seed and step.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from convergence import task
from convergence.data import scenes
from convergence.families import Size
from convergence.tasks import detection
from convergence.tasks.detection import load as load
from models import faster_rcnn


def make(data: scenes.Scenes, size: Size) -> task.Task:
    shape = (data.side, data.side, 3)
    model = faster_rcnn.build(input_shape=shape, classes=data.classes, **size.model)
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=10.0)
    train = data.train

    def loss(batch: task.Batch) -> tf.Tensor:
        return faster_rcnn.loss(model, *batch)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = detection.rows(train, size, seed, step)
        found = train.pixels(chosen), train.boxes[chosen], train.labels[chosen]
        return (*found, np.array([seed, step], np.int32))

    @tf.function(autograph=False)
    def detect(images: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return faster_rcnn.detect(model, images)

    def evaluate() -> float:
        return detection.precision(data, detect, size.batch)

    return task.simple(model, loss, optimizer, batch, evaluate)
