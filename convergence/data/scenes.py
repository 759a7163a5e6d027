"""Images with objects: scenes composed of handwritten digits, VOC and packed files.

No default boxes and no anchors: a detector's own matters.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from convergence.data import files, packed_boxes, voc

COMPOSED = (1000, 400)  # scenes of digits to train on and to test with
VOID = 255  # in masks: a pixel that does not count, as in VOC's own


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Images of one side, with what is in them.

    Attributes:
      images: [n, side, side, 3] uint8.
      boxes: (top, left, bottom, right) in fractions of the image, [n, objects, 4]
        float32; rows beyond the last object are 0.
      labels: classes of the objects, from 1, [n, objects] int32; 0 in padding.
      difficult: objects that an evaluation neither wants nor minds, [n, objects] bool.
      masks: class of each pixel, 0 the background, 255 void, [n, side, side] uint8.
    """

    images: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    difficult: np.ndarray
    masks: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, rows: np.ndarray) -> np.ndarray:
        """Images [rows, side, side, 3] from -1 to 1, float32."""
        return self.images[rows].astype(np.float32) / 127.5 - 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Scenes:
    """A set of images with objects.

    Attributes:
      name: of the set, in results.
      train, test: the splits.
      side: of an image, in pixels.
      kinds: names of the classes of objects, of class 1 and up.
    """

    name: str
    train: Split
    test: Split
    side: int
    kinds: tuple[str, ...]

    @property
    def classes(self) -> int:
        """Classes of objects, without the background."""
        return len(self.kinds)


def load(
    directory: Path | None, *, side: int, classes: int = 10, masks: bool = False
) -> Scenes:
    """Returns the scenes of a data directory, or scenes of digits.

    Args:
      directory: where VOC's directories, or a packed file of images and one of boxes,
        are; None for digits.
      side: pixels of an image.
      classes: digits from 0 up that embedded scenes hold.
      masks: whether masks are wanted: of VOC, its segmentation part is read. Packed
        sets have boxes only: an ellipse in each stands for a mask, and the set's name
        says so.

    Raises:
      DataError: a file is missing or malformed.
    """
    if directory is None:
        train, test = (digits(n, s, side, classes) for s, n in enumerate(COMPOSED))
        kinds = tuple(map(str, range(classes)))
        return Scenes("digit_scenes", train, test, side, kinds)
    sources = {
        "Annotations": lambda path: _of_voc(path.parent, side, masks),
        "*/Annotations": lambda path: _of_voc(path.parent, side, masks),
        "voc2007_*.npz": lambda path: _of_packed(path, side, masks),
        "bccd_*.npz": lambda path: _of_packed(path, side, masks),
    }
    return files.choose(directory, sources, "images with objects")


def digits(count: int, seed: int, side: int, classes: int) -> Split:
    """Scenes of 1 to 4 digits, a fifth to a half of the side high, on clutter.

    Digits of both splits differ: every fifth is for testing (an odd seed).
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    rows = np.arange(len(labels))
    rows = rows[((rows % 5 == 0) == (seed % 2 == 1)) & (labels < classes)]
    shapes, kinds = images[rows].reshape(-1, 8, 8) / 16.0, labels[rows] + 1
    random = np.random.default_rng(seed)
    made = [_scene(random, side, shapes, kinds) for _ in range(count)]
    return stacked([(*scene, np.zeros(len(scene[2]), bool)) for scene in made])


def _scene(
    random: np.random.Generator, side: int, shapes: np.ndarray, kinds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Image, mask, boxes and labels of one scene."""
    image = _clutter(random, side)
    mask = np.zeros((side, side), np.uint8)
    taken = np.zeros((side, side), bool)
    boxes, labels = [], []
    for chosen in random.integers(len(kinds), size=random.integers(1, 5)):
        size = int(random.integers(side // 5, side // 2 + 1))
        top, left = random.integers(0, side - size + 1, 2)
        place = np.s_[top : top + size, left : left + size]
        if taken[place].any() and boxes:  # digits do not cover one another
            continue
        taken[place] = True
        steps = np.arange(size) * 8 // size
        shape = shapes[chosen][np.ix_(steps, steps)]
        colour = random.uniform(0.5, 1.0, 3)
        image[place] = np.maximum(image[place], shape[..., None] * colour)
        mask[place][shape > 0.3] = kinds[chosen]
        boxes.append(np.array([top, left, top + size, left + size]) / side)
        labels.append(kinds[chosen])
    pixels = (np.clip(image, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels, mask, np.array(boxes), np.array(labels)


def _clutter(random: np.random.Generator, side: int) -> np.ndarray:
    """Noise and three faint bars of any colour."""
    image = random.uniform(0.0, 0.15, (side, side, 3))
    for _ in range(3):
        top, left = random.integers(0, side, 2)
        height, width = random.integers(1, side // 4, 2)
        image[top : top + height, left : left + width] += random.uniform(0.0, 0.3, 3)
    return image


def stacked(found: list[tuple[np.ndarray, ...]]) -> Split:
    """One split of images, each with mask, boxes, labels and difficult flags."""
    images, masks, *objects = zip(*found, strict=True)
    boxes, labels, difficult = (_padded(part) for part in objects)
    return Split(
        np.stack(images),
        boxes.reshape(len(images), -1, 4).astype(np.float32),
        labels.astype(np.int32),
        difficult.astype(bool),
        np.stack(masks),
    )


def _padded(rows: tuple[np.ndarray, ...]) -> np.ndarray:
    """Arrays of different lengths as one, with zeros behind."""
    most = max(map(len, rows))
    tail = next((row.shape[1:] for row in rows if len(row)), ())
    whole = np.zeros((len(rows), most, *tail))
    for line, row in zip(whole, rows, strict=True):
        line[: len(row)] = row.reshape(-1, *tail)
    return whole


def _of_voc(root: Path, side: int, masks: bool) -> Scenes:
    found = {name: voc.split(root, name, side, masks) for name in ("train", "val")}
    train, test = stacked(found["train"]), stacked(found["val"])
    return Scenes("voc", train, test, side, voc.CLASSES)


def _of_packed(path: Path, side: int, masks: bool) -> Scenes:
    kinds, found = packed_boxes.splits(path, side)
    train, test = stacked(found["train"]), stacked(found["test"])
    name = f"{path.stem}_ellipses" if masks else path.stem
    return Scenes(name, train, test, side, kinds)
