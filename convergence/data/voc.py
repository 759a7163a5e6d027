"""PASCAL VOC as it is published: a directory of XML annotations and JPEG images.

Reads one split into arrays; nothing is composed here.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from convergence.data import files

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair"),
    *("cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant"),
    *("sheep", "sofa", "train", "tvmonitor"),
)
EXPECTED = "an annotation of PASCAL VOC: size, and objects with name and bndbox"
Example = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def split(root: Path, name: str, side: int, masks: bool) -> list[Example]:
    """Returns image, mask, boxes, labels and difficult flags of each image of a split.

    Args:
      root: the directory with Annotations, JPEGImages and ImageSets.
      name: of the list of images, "train" or "val".
      side: pixels that images and masks are resized to, whatever their shape.
      masks: whether the segmentation part is meant; else masks are void.

    Raises:
      DataError: a file is missing or malformed.
    """
    part = "Segmentation" if masks else "Main"
    listed = files.beside(root / "Annotations", f"ImageSets/{part}/{name}.txt")
    names = [line.split()[0] for line in files.lines(listed) if line.strip()]
    if not names:
        raise files.malformed(listed, "it names no image", "a name of an image a line")
    return [_example(root, image, side, masks) for image in names]


def _example(root: Path, name: str, side: int, masks: bool) -> Example:
    inside = root / "Annotations"
    picture = pixels(files.beside(inside, f"JPEGImages/{name}.jpg"), side)
    mask = np.full((side, side), 255, np.uint8)
    if masks:
        mask = _mask(files.beside(inside, f"SegmentationClass/{name}.png"), side)
    boxes, labels, difficult = annotation(
        files.beside(inside, f"Annotations/{name}.xml")
    )
    return picture, mask, boxes, labels, difficult


def pixels(path: Path, side: int) -> np.ndarray:
    """The image of a JPEG file, [side, side, 3] uint8.

    Raises:
      DataError: it cannot be decoded.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
            return np.asarray(small, np.uint8)
    except (OSError, UnidentifiedImageError) as e:
        raise files.malformed(path, f"it cannot be decoded: {e}", "a JPEG image") from e


def _mask(path: Path, side: int) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    expected = "a PNG image with a palette, as VOC's: classes 0 to 20, and 255"
    try:
        with Image.open(path) as image:
            if image.mode not in ("P", "L"):
                raise files.malformed(path, f"its mode is {image.mode}", expected)
            near = image.resize((side, side), Image.Resampling.NEAREST)
            return np.asarray(near, np.uint8)
    except UnidentifiedImageError as e:
        raise files.malformed(path, f"it cannot be decoded: {e}", expected) from e


def annotation(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [objects, 4] in fractions, labels and difficult flags of an annotation.

    VOC's corners count pixels from 1, both ends inside: fractions are (min - 1) / size
    and max / size.

    Raises:
      DataError: no such annotation, or an unknown class.
    """
    try:
        root = ElementTree.parse(path).getroot()
        width, height = (float(_text(root, f"size/{n}")) for n in ("width", "height"))
        objects = root.findall("object")
        boxes = [
            [
                (float(_text(found, "bndbox/ymin")) - 1) / height,
                (float(_text(found, "bndbox/xmin")) - 1) / width,
                float(_text(found, "bndbox/ymax")) / height,
                float(_text(found, "bndbox/xmax")) / width,
            ]
            for found in objects
        ]
        labels = [1 + CLASSES.index(_text(found, "name")) for found in objects]
    except (ElementTree.ParseError, ValueError, ZeroDivisionError) as e:
        raise files.malformed(path, f"it cannot be read: {e}", EXPECTED) from e
    hard = [found.findtext("difficult", "0").strip() == "1" for found in objects]
    return np.array(boxes).reshape(-1, 4), np.array(labels, int), np.array(hard, bool)


def _text(element: ElementTree.Element, path: str) -> str:
    value = element.findtext(path)
    if value is None:
        raise ValueError(f"no {path}")
    return value.strip()
