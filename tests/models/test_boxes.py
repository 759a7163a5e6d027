"""Boxes: overlap and offsets, by hand and there and back."""

from __future__ import annotations

import numpy as np
import pytest

from models import boxes, default_boxes


def test_offsets_lead_back_to_the_boxes() -> None:
    random = np.random.default_rng(0)
    defaults = default_boxes.default_boxes([4, 2, 1])
    low = random.uniform(0, 0.5, (len(defaults), 2)).astype(np.float32)
    some = np.concatenate([low, low + random.uniform(0.1, 0.5, low.shape)], 1)
    some = some.astype(np.float32)
    offsets = boxes.encode(some, defaults)
    # A few roundings of numbers up to about 20 times 0.2, and back to at most 1.
    np.testing.assert_allclose(boxes.decode(offsets, defaults), some, rtol=0, atol=1e-5)
    zero = np.zeros_like(some)
    np.testing.assert_array_equal(boxes.decode(zero, defaults), boxes.corners(defaults))


def test_a_size_grows_no_further_than_float32_holds() -> None:
    one = np.array([0.5, 0.5, 0.1, 0.1], np.float32)
    low, *_, high = boxes.decode(np.array([0, 0, 1e4, 1e4], np.float32), one).numpy()
    assert high - low == pytest.approx(0.1 * 1000 / 16, rel=1e-5)


def test_centred_boxes_are_boxes_of_the_same_corners() -> None:
    some = np.array([[0.25, 0.5, 0.75, 0.625]], np.float32)
    np.testing.assert_array_equal(boxes.centred(some), [[0.5, 0.5625, 0.5, 0.125]])
    np.testing.assert_array_equal(boxes.corners(boxes.centred(some)), some)


def test_overlap_is_intersection_over_union() -> None:
    a = np.array([[0.0, 0.0, 0.5, 0.5]], np.float32)
    b = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]], np.float32)
    np.testing.assert_allclose(boxes.jaccard(a, b), [[1, 1 / 3, 0]], rtol=1e-6)
    batch = boxes.jaccard(np.stack([a, a]), np.stack([b, b]))
    np.testing.assert_array_equal(batch, [boxes.jaccard(a, b)] * 2)


def test_boxes_without_area_overlap_nothing() -> None:
    point = np.zeros((1, 4), np.float32)
    np.testing.assert_array_equal(boxes.jaccard(point, point), [[0]])


def test_smooth_l1_is_square_below_one_and_linear_beyond() -> None:
    found = boxes.smooth_l1(np.array([[0.5, -0.5], [3.0, 0.0]], np.float32))
    np.testing.assert_allclose(found, [0.25, 2.5])
