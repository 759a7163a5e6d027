"""Classification of images by a residual network; accuracy.

What a step sees is rows of the data, as they are or, where the size says so, moved and
mirrored at random; nothing else is done to an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

from convergence import task
from convergence.data import images
from convergence.families import Size
from convergence.trivial import ridge
from models import resnet

LINEAR = 32  # pixels a side; of more, a matrix of features would not fit into memory


def load(size: Size, directory: Path | None) -> images.Images:
    return images.load(directory, **size.data)


def trivial(data: images.Images, size: Size) -> float:
    """Accuracy of ridge regression, of whose strengths the best on the test split."""
    train = ((_small(x), y) for x, y in _pieces(data.train))
    matrices = ridge.fit(train, data.classes)
    right = np.zeros(len(matrices))
    for x, y in _pieces(data.test):
        x = _small(x)
        found = [ridge.scores(matrix, x).argmax(axis=-1) for matrix in matrices]
        right += (np.array(found) == y).sum(axis=1)
    return float(right.max() / len(data.test))


def _small(x: np.ndarray) -> np.ndarray:
    """Images of at most about `LINEAR` pixels a side, each the mean of a square."""
    times = max(x.shape[1] // LINEAR, 1)
    side = x.shape[1] // times
    x = x[:, : side * times, : side * times]
    cells = x.reshape(len(x), side, times, side, times, -1)
    return cells.mean(axis=(2, 4))


def _pieces(split: images.Split) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All images and labels, some at a time: a large set does not fit into memory."""
    for start in range(0, len(split), 1000):
        yield split.take(np.arange(start, min(start + 1000, len(split))))


def make(data: images.Images, size: Size) -> task.Task:
    shape = (data.side, data.side, data.channels)
    sizes = {"classes": data.classes, "input_shape": shape, **size.model}
    moved, smoothing = sizes.pop("moved", 0), sizes.pop("smoothing", 0.0)
    if "blocks" in sizes:
        model = resnet.resnet50(**sizes)
    else:
        model = resnet.resnet_cifar(**sizes)
    infer = task.inference(model)
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(data.train))
        x, y = data.train.take(chosen)
        y = keras.utils.to_categorical(y, data.classes) if smoothing else y
        return augmented(x, moved, task.noise(seed, step)), y

    def evaluate() -> float:
        right = 0
        for x, y in _pieces(data.test):
            right += int((task.outputs(infer, (x,), size.batch).argmax(-1) == y).sum())
        return right / len(data.test)

    loss = _smoothed(smoothing) if smoothing else resnet.LOSS()
    return task.supervised(model, loss, optimizer, batch, evaluate)


def _smoothed(share: float) -> keras.losses.Loss:
    """Cross entropy to labels of which so large a share is spread over all classes."""
    return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=share)


def augmented(x: np.ndarray, pixels: int, random: np.random.Generator) -> np.ndarray:
    """Images moved by up to so many pixels, half of them mirrored; as they are for 0.

    He et al. (2015), section 4.2: 4 pixels of zeros are padded on each side, and a crop
    of the old size is taken from that or its mirror image.
    """
    if not pixels:
        return x
    count, side = x.shape[:2]
    frame = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    places = random.integers(2 * pixels + 1, size=(2, count, 1))
    rows, columns = places + np.arange(side)
    mirrored = random.random((count, 1)) < 0.5
    columns = np.where(mirrored, columns[:, ::-1], columns)
    each = np.arange(count)[:, None, None]
    return np.pad(x, frame)[each, rows[:, :, None], columns[:, None, :]]
