"""`patches.sampled`: parts of images, with the boxes of what is in them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from convergence import families
from convergence.data import patches
from convergence.tasks import detection, ssd

SIDE, COUNT, MOST = 64, 40, 4
BOXES = np.zeros([COUNT, MOST, 4], np.float32)
LABELS = np.zeros([COUNT, MOST], np.int32)
BOXES[:, :2] = [[0.125, 0.25, 0.5, 0.5], [0.5, 0.625, 0.75, 0.875]]
LABELS[:, :2] = [1, 2]


def ramps() -> np.ndarray:
    """Images whose first channels are how far down and how far right a pixel is.

    Sampling between pixels gives these exactly, so that a part tells where it was.
    """
    way = np.linspace(0, 1, SIDE, dtype=np.float32)
    down, right = np.meshgrid(way, way, indexing="ij")
    return np.tile(np.stack([down, right, right], -1), [COUNT, 1, 1, 1])


def sampled(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return patches.sampled(ramps(), BOXES, LABELS, np.random.default_rng(seed))


def test_boxes_enclose_what_they_enclosed_in_the_part() -> None:
    cut = 0
    for image, boxes, labels in zip(*sampled(0), strict=True):
        first, last = image[0, 0, :2], image[-1, -1, :2]  # last is left of it: mirrored
        part = np.sort([first, last], 0)
        for box, kind in zip(boxes[labels > 0], labels[labels > 0], strict=True):
            corners = np.sort(first + box.reshape(2, 2) * (last - first), 0)
            given = BOXES[0, kind - 1].reshape(2, 2)
            np.testing.assert_allclose(corners, given.clip(*part), atol=1e-6)
            cut += not np.allclose(corners, given)
    assert cut > 0


def test_every_part_has_an_object_with_its_centre_inside() -> None:
    _, boxes, labels = sampled(1)
    assert (labels > 0).any(axis=1).all()
    assert (labels > 0).sum() < (LABELS > 0).sum()  # others were left outside
    assert (boxes[labels > 0, 2:] > boxes[labels > 0, :2]).all()
    assert boxes.min() >= 0.0
    assert boxes.max() <= 1.0
    assert not boxes[labels == 0].any()


def test_shapes_and_types_stay() -> None:
    given = ramps(), BOXES, LABELS
    for before, after in zip(given, sampled(2), strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)


def test_the_random_numbers_decide() -> None:
    for one, same in zip(sampled(3), sampled(3), strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(sampled(3)[0], sampled(4)[0])


def test_images_without_objects_stay_whole_and_half_are_mirrored() -> None:
    """40 coins: fewer than 8 heads, or more than 32, has a probability of 4e-5."""
    none = np.zeros_like(BOXES), np.zeros_like(LABELS)
    images, boxes, labels = patches.sampled(ramps(), *none, np.random.default_rng(0))
    assert not boxes.any()
    assert not labels.any()
    mirrored = images[:, 0, 0, 1] > 0.5
    assert 8 <= mirrored.sum() <= 32
    turned = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
    np.testing.assert_allclose(turned, ramps(), atol=1e-6)


@pytest.mark.parametrize("wanted", [True, False])
def test_ssd_trains_on_parts_where_its_size_says_so(wanted: bool) -> None:
    size = families.FAMILIES["ssd"].quick
    told = dataclasses.replace(size, data={**size.data, "patches": wanted})
    data = ssd.load(told, None)
    images, _ = ssd.make(data, told).batch(0, 0)
    chosen = detection.rows(data.train, told, 0, 0)
    same = np.array_equal(images, data.train.pixels(chosen))
    assert same is not wanted
