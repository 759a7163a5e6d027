"""ImageNet's TFRecords with random access: where each record is, and how it is read.

Records stay in their files; nothing is held but their places. Knows no other format.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from convergence.data import files

# A record: length (8 bytes), its checksum (4), the data, its checksum (4).
HEAD, TAIL = 12, 4
EXPECTED = (
    "TFRecords of tf.train.Example with image/encoded (JPEG) and image/class/label "
    "(from 1 to 1000)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Records:
    """Labelled JPEG images in record files.

    Attributes:
      paths: the files.
      places: file, offset and length in bytes of each record, [n, 3] int64.
      side: pixels that images are resized to.
    """

    paths: tuple[Path, ...]
    places: np.ndarray
    side: int

    @classmethod
    def index(cls, paths: Sequence[Path], side: int) -> Records:
        """Returns the records of files, of which only the lengths are read.

        Raises:
          DataError: a file that is no record file, or is cut off.
        """
        places = [
            (number, offset, length)
            for number, path in enumerate(paths)
            for offset, length in _lengths(path)
        ]
        return cls(tuple(paths), np.array(places, np.int64).reshape(-1, 3), side)

    def __len__(self) -> int:
        return len(self.places)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = [self._read(*self.places[row]) for row in rows]
        images, labels = zip(*pairs, strict=True)
        return np.stack(images) / 127.5 - 1.0, np.array(labels, np.int32)

    def _read(self, number: int, offset: int, length: int) -> tuple[np.ndarray, int]:
        path = self.paths[number]
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        try:
            example = tf.io.parse_single_example(data, features)
            image = tf.io.decode_jpeg(example["image/encoded"], channels=3)
        except tf.errors.InvalidArgumentError as e:
            raise files.malformed(
                path, f"the record at byte {offset} cannot be read", EXPECTED
            ) from e
        label = int(example["image/class/label"]) - 1
        return tf.image.resize(image, (self.side, self.side)).numpy(), label


def _lengths(path: Path) -> list[tuple[int, int]]:
    """Offset and length of the data of each record."""
    found, at, size = [], 0, path.stat().st_size
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
            after = at + HEAD + length + TAIL
            if after > size:
                raise files.malformed(path, f"cut off at byte {at}", EXPECTED)
            found.append((at + HEAD, length))
            at = after
    return found
