"""Detection sets in two files: JPEG images in one .npz, their boxes in one JSON.

For each split S the .npz has `S_jpeg` (all files, one after the other) and `S_offset`
(where each begins, and the end). No masks: an ellipse in each box stands for one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convergence.data import files, voc

EXPECTED = (
    'JSON with "classes" (id to name, from 1) and "splits": for train and test a list, '
    'in the order of the images, of "boxes" [top, left, bottom, right] and "classes"'
)


def splits(
    path: Path, side: int
) -> tuple[tuple[str, ...], dict[str, list[voc.Example]]]:
    """Returns the names of the classes, and the examples of "train" and "test".

    Args:
      path: the .npz file; `<stem>_boxes.json.gz` or `.json` lies beside it.
      side: pixels that images are resized to.

    Raises:
      DataError: a file is missing or malformed.
    """
    plain = path.with_name(f"{path.stem}_boxes.json")
    other = plain if plain.exists() else files.beside(path, f"{plain.name}.gz")
    try:
        told = json.loads(files.text(other))
        names = told["classes"]
        kinds = tuple(str(names[str(k)]) for k in range(1, len(names) + 1))
        found = {s: _split(path, s, told["splits"][s], side) for s in ("train", "test")}
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise files.malformed(other, f"it cannot be read: {e!r}", EXPECTED) from e
    return kinds, found


def _split(
    path: Path, name: str, told: list[Mapping[str, Any]], side: int
) -> list[voc.Example]:
    held = files.arrays(path, (f"{name}_jpeg", f"{name}_offset"))
    data, offset = held[f"{name}_jpeg"].tobytes(), held[f"{name}_offset"]
    if len(offset) != len(told) + 1:
        raise files.malformed(
            path,
            f"{len(offset) - 1} images in {name}, and {len(told)} in the file of boxes",
            "as many images as entries",
        )
    return [
        _example(path, data[offset[i] : offset[i + 1]], entry, side)
        for i, entry in enumerate(told)
    ]


def _example(
    path: Path, jpeg: bytes, entry: Mapping[str, Any], side: int
) -> voc.Example:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(jpeg)) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
            pixels = np.asarray(small, np.uint8)
    except (OSError, UnidentifiedImageError) as e:
        raise files.malformed(path, f"an image cannot be decoded: {e}", "JPEG") from e
    boxes = np.array(entry["boxes"], float).reshape(-1, 4)
    labels = np.array(entry["classes"], int)
    difficult = np.array(entry.get("difficult", [0] * len(labels)), bool)
    return pixels, ellipses(boxes, labels, side), boxes, labels, difficult


def ellipses(boxes: np.ndarray, labels: np.ndarray, side: int) -> np.ndarray:
    """A mask [side, side] uint8 of an ellipse in each box, the smaller ones on top."""
    mask = np.zeros((side, side), np.uint8)
    rows, columns = ((np.indices((side, side)) + 0.5) / side).astype(np.float32)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    for index in np.argsort(-areas, kind="stable"):
        top, left, bottom, right = boxes[index]
        down = (rows - (top + bottom) / 2) / max((bottom - top) / 2, 1e-6)
        across = (columns - (left + right) / 2) / max((right - left) / 2, 1e-6)
        mask[down**2 + across**2 <= 1.0] = labels[index]
    return mask
