"""Faster R-CNN on scenes; mean average precision.

Anchors are of the sizes that the training images' objects have. Which of them, and
which regions, the loss looks at depends on seed and step and nothing else.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from convergence import task
from convergence.data import scenes
from convergence.families import Size
from convergence.tasks import detection
from convergence.tasks.detection import load as load
from convergence.tasks.detection import trivial as trivial
from models import faster_rcnn


def make(data: scenes.Scenes, size: Size) -> task.Task:
    shape = (data.side, data.side, 3)
    sizes = dict(size.model)
    settings = dataclasses.replace(
        faster_rcnn.SMALL, scales=scales(data.train), **sizes.pop("settings", {})
    )
    model = faster_rcnn.build(
        input_shape=shape, classes=data.classes, settings=settings, **sizes
    )
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

    def evaluate() -> task.Metric:
        return detection.precision(data, detect, size.batch)

    return task.simple(model, loss, optimizer, batch, evaluate)


def scales(train: scenes.Split, count: int = 3) -> tuple[float, ...]:
    """Sides of square anchors, rising, that stand for the objects in equal shares.

    The middles of as many equal parts of the objects' sides (square roots of areas, as
    fractions of the image's); each class weighs the same, however many it has.
    """
    real = train.labels > 0
    boxes, labels = train.boxes[real].astype(np.float64), train.labels[real]
    sides = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    order = np.argsort(sides, kind="stable")
    weights = 1.0 / np.bincount(labels)[labels[order]]
    shares = np.cumsum(weights) / weights.sum()
    places = np.searchsorted(shares, (np.arange(count) + 0.5) / count)
    return tuple(float(sides[order][place]) for place in places)
