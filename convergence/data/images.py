"""Labelled images: handwritten digits, CIFAR and Fashion-MNIST files, ImageNet records.

No model, and no order of examples.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

import numpy as np

from convergence.data import files, records


class Split(Protocol):
    """Labelled images of one side."""

    def __len__(self) -> int: ...

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images [rows, side, side, channels] from -1 to 1, and labels [rows]."""


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """A set of labelled images.

    Attributes:
      name: of the set, in results.
      train, test: the splits.
      side, channels: of an image, in pixels.
      classes: number of labels.
    """

    name: str
    train: Split
    test: Split
    side: int
    channels: int
    classes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Arrays:
    """Images held as bytes: `images` [n, side, side, channels] uint8, `labels` [n]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = self.images[rows].astype(np.float32) / 127.5 - 1.0
        return images, self.labels[rows].astype(np.int32)


def load(directory: Path | None, *, side: int) -> Images:
    """Returns the images of a data directory, or the digits.

    Args:
      directory: where CIFAR or Fashion-MNIST .npz files or ImageNet records are; None
        for the digits that scikit-learn brings.
      side: pixels of the digits and of ImageNet's, and of other sets where theirs are a
        multiple of it, of which they are averaged; else those keep their own.

    Raises:
      DataError: a file is missing or malformed.
    """
    if directory is None:
        return digits(side)
    sources = {
        "cifar*.npz": lambda path: packed(path, side),
        "fashion_mnist.npz": lambda path: packed(path, side),
        "train-*-of-*": lambda path: image_net(path, side),
    }
    return files.choose(directory, sources, "images with labels")


def digits(side: int) -> Images:
    """The 1797 digits of 8×8 pixels, enlarged; every fifth is for testing.

    Args:
      side: pixels wanted, a multiple of 8.
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    images = (images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    times = side // 8
    images = images.repeat(times, axis=1).repeat(times, axis=2)
    test = np.arange(len(images)) % 5 == 0
    train = Arrays(images[~test], labels[~test])
    return Images("digits", train, Arrays(images[test], labels[test]), 8 * times, 1, 10)


def packed(path: Path, side: int) -> Images:
    """A set in one .npz file: x_train, y_train, x_test, y_test, as Keras packs them.

    Args:
      path: the file.
      side: pixels wanted; a set whose own are no multiple of it keeps them.

    Raises:
      DataError: an array is missing, or its type or shape is another.
    """
    held = files.arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    train = _arrays(path, held["x_train"], held["y_train"])
    test = _arrays(path, held["x_test"], held["y_test"])
    own, channels = train.images.shape[1], train.images.shape[3]
    classes, name = int(train.labels.max()) + 1, path.stem
    if own > side and own % side == 0:
        train, test = (_averaged(split, own // side) for split in (train, test))
        name, own = f"{name}_{side}", side
    return Images(name, train, test, own, channels, classes)


def _averaged(split: Arrays, times: int) -> Arrays:
    """Images whose pixels are means over squares of so many pixels a side."""
    count, side, _, channels = split.images.shape
    shape = (count, side // times, times, side // times, times, channels)
    means = split.images.reshape(shape).mean(axis=(2, 4), dtype=np.float32)
    return Arrays(np.round(means).astype(np.uint8), split.labels)


def _arrays(path: Path, images: np.ndarray, labels: np.ndarray) -> Arrays:
    labels = labels.reshape(-1)
    images = images[..., None] if images.ndim == 3 else images
    square = images.ndim == 4 and images.shape[1] == images.shape[2]
    if images.dtype != np.uint8 or not square or len(images) != len(labels):
        raise files.malformed(
            path,
            f"images {images.dtype} {images.shape}, labels {labels.shape}",
            "uint8 square images [n, side, side, channels] or [n, side, side], and as "
            "many labels",
        )
    return Arrays(images, labels)


def image_net(path: Path, side: int) -> Images:
    """ImageNet as TFRecords: train-…-of-… and validation-…-of-…, labels from 1.

    Args:
      path: one of the training files.
      side: pixels that images are resized to.

    Raises:
      DataError: a file is missing or malformed.
    """
    validation = sorted(path.parent.glob("validation-*-of-*"))
    if not validation:
        files.beside(path, "validation-00000-of-00128")
    train = records.Records.index(sorted(path.parent.glob("train-*-of-*")), side)
    test = records.Records.index(validation, side)
    return Images("imagenet", train, test, side, 3, 1000)
