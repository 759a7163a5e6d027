"""SSD on scenes; mean average precision.

Matching is done with the data, outside of the step that is on trial.
"""

from __future__ import annotations

from pathlib import Path

import keras
import tensorflow as tf

from convergence import task
from convergence.data import patches, scenes
from convergence.families import Size
from convergence.tasks import detection
from convergence.tasks.detection import trivial as trivial
from models import default_boxes, ssd


def load(size: Size, directory: Path | None) -> scenes.Scenes:
    told = {name: value for name, value in size.data.items() if name != "patches"}
    return scenes.load(directory, **told)


def make(data: scenes.Scenes, size: Size) -> task.Task:
    shape = (data.side, data.side, 3)
    model = ssd.build(input_shape=shape, classes=data.classes, **size.model)
    defaults = default_boxes.default_boxes(ssd.map_sides(shape))
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    train = data.train

    @tf.function(autograph=False)
    def match(boxes: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return default_boxes.targets(boxes, labels, defaults)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = detection.rows(train, size, seed, step)
        images = train.pixels(chosen)
        boxes, labels = train.boxes[chosen], train.labels[chosen]
        if size.data.get("patches"):
            random = task.noise(seed, step)
            images, boxes, labels = patches.sampled(images, boxes, labels, random)
        return images, match(boxes, labels)

    @tf.function(autograph=False)
    def detect(images: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return default_boxes.detect(model(images, training=False), defaults)

    def evaluate() -> task.Metric:
        return detection.precision(data, detect, size.batch)

    return task.supervised(model, ssd.LOSS(), optimizer, batch, evaluate)
