"""Regions of Faster R-CNN, against plain loops and by hand."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from models import boxes, regions


def random_boxes(seed: int, *shape: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.6, (*shape, 2))
    return np.concatenate([low, low + random.uniform(0.1, 0.4, low.shape)], -1).astype(
        np.float32
    )


def test_anchors_have_their_areas_and_ratios_at_each_cell() -> None:
    found = regions.anchors((2, 3), (0.25, 0.5), (0.5, 1.0, 2.0))
    assert found.shape == (2 * 3 * 6, 4)
    np.testing.assert_allclose(found[:6, :2], [[0.25, 1 / 6]] * 6, rtol=1e-6)
    np.testing.assert_allclose(found[-1, :2], [0.75, 5 / 6], rtol=1e-6)
    height, width = found[:6, 2], found[:6, 3]
    np.testing.assert_allclose(height * width, [1 / 16] * 3 + [1 / 4] * 3, rtol=1e-6)
    np.testing.assert_allclose(height / width, [0.5, 1, 2] * 2, rtol=1e-6)


def test_anchors_beyond_the_image_are_told() -> None:
    found = np.array([[0.5, 0.5, 1, 1], [0.5, 0.5, 1.2, 0.2], [0.1, 0.5, 0.2, 0.2]])
    np.testing.assert_array_equal(regions.inside(found), [True, False, True])
    np.testing.assert_array_equal(regions.inside(found, 0.11), [True, True, True])


def test_anchors_match_by_overlap_or_by_being_the_best() -> None:
    """Section 3.1.2; in between is neither; padding matches nothing."""
    found = boxes.centred(
        np.array(
            [[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.4], [0, 0, 0.5, 0.25], [0.5, 0.5, 1, 1]],
            np.float32,
        )
    ).numpy()
    truth = np.array([[[0, 0, 0.5, 0.5], [0.8, 0.8, 1, 1], [0, 0, 1, 1]]], np.float32)
    labels = np.array([[1, 2, 0]])
    usable = np.array([True, True, True, True])
    positive, negative, matched = regions.match_anchors(found, usable, truth, labels)
    np.testing.assert_array_equal(positive, [[True, True, False, True]])
    np.testing.assert_array_equal(negative, [[False] * 4])  # half overlaps: neither
    np.testing.assert_allclose(matched[0, 3], truth[0, 1])
    np.testing.assert_allclose(matched[0, 2], boxes.corners(found[2]))
    usable[0] = False
    positive, negative, _ = regions.match_anchors(found, usable, truth, labels)
    assert not positive[0, 0]
    assert not negative[0, 0]


def test_regions_take_the_class_they_overlap_by_half() -> None:
    truth = np.array([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]], np.float32)
    some = np.array([[[0, 0, 0.5, 0.4], [0.5, 0.5, 0.7, 0.7]]], np.float32)
    kinds, matched = regions.match_regions(some, truth, np.array([[3, 2]]))
    np.testing.assert_array_equal(kinds, [[3, 0]])
    np.testing.assert_array_equal(matched, [[truth[0, 0], some[0, 1]]])


def test_samples_keep_to_the_quota_and_repeat_under_a_seed() -> None:
    """Few positives leave more places to negatives."""
    random = np.random.default_rng(0)
    positive = random.uniform(size=(3, 100)) < [[0.5], [0.03], [0]]
    negative = ~positive & (random.uniform(size=(3, 100)) < 0.4)
    draws = [regions.sample(positive, negative, (8, 32), [1, s]) for s in (5, 5, 6)]
    for chosen, among in zip(draws[0], (positive, negative), strict=True):
        assert not (chosen.numpy() & ~among).any()
    counts = np.sum(draws[0][0], 1)
    np.testing.assert_array_equal(counts, np.minimum(positive.sum(1), 8))
    np.testing.assert_array_equal(
        np.sum(draws[0][1], 1), np.minimum(negative.sum(1), 32 - counts)
    )
    for part in (0, 1):
        np.testing.assert_array_equal(draws[0][part], draws[1][part])
        assert (draws[0][part] != draws[2][part]).numpy().any()


def suppressed(some: np.ndarray, scores: np.ndarray) -> list[int]:
    """Greedy non-maximum suppression, as everyone describes it."""
    overlap, kept = boxes.jaccard(some, some).numpy(), []
    for index in np.argsort(-scores):
        if scores[index] > 0 and all(overlap[index, k] <= 0.7 for k in kept):
            kept.append(int(index))
    return kept


def test_proposals_are_those_of_greedy_suppression() -> None:
    """Against brute force; more anchors than a tile of the kernel's, tiny ones out."""
    truth = random_boxes(1, 60)
    found = np.repeat(boxes.centred(truth).numpy(), 10, 0)
    offsets = np.random.default_rng(2).normal(0, 0.05, (2, 600, 4)).astype(np.float32)
    objectness = np.random.default_rng(3).normal(0, 2, (2, 600)).astype(np.float32)
    offsets[0, :50, 2:] = -9.0
    decoded = np.clip(boxes.decode(offsets, found, regions.PLAIN).numpy(), 0, 1)
    proposals = regions.propose(objectness, offsets, found, (600, 400)).numpy()
    for image in range(2):
        tiny = (decoded[image, :, 2:] - decoded[image, :, :2]).min(1) < 0.01
        scores = np.where(tiny, 0, tf.sigmoid(objectness[image]).numpy())
        wanted = decoded[image, suppressed(decoded[image], scores)]
        assert 30 < len(wanted) < 400
        np.testing.assert_array_equal(proposals[image, : len(wanted)], wanted)
        assert not proposals[image, len(wanted) :].any()
        assert regions.usable(proposals[image]).numpy().sum() == len(wanted)


def align_one(features: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """RoI align of one box, point by point."""
    height, width, channels = features.shape
    found = np.zeros((size, size, channels))
    top, left, bottom, right = box
    for row, column, i, j in np.ndindex(size, size, 2, 2):
        y = top + (bottom - top) * (row + (i + 0.5) / 2) / size
        x = left + (right - left) * (column + (j + 0.5) / 2) / size
        y = np.clip(y * height - 0.5, 0, height - 1)
        x = np.clip(x * width - 0.5, 0, width - 1)
        y0, x0 = int(y), int(x)
        y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
        above = features[y0, x0] * (1 - x + x0) + features[y0, x1] * (x - x0)
        below = features[y1, x0] * (1 - x + x0) + features[y1, x1] * (x - x0)
        found[row, column] += (above * (1 - y + y0) + below * (y - y0)) / 4
    return found


def test_roi_align_is_the_mean_of_interpolated_points() -> None:
    features = np.random.default_rng(0).uniform(-1, 1, (2, 6, 5, 3)).astype(np.float32)
    some = random_boxes(4, 2, 3)
    some[0, 0] = [-0.2, -0.1, 1.1, 1.3]
    found = regions.roi_align(features, some, size=4).numpy()
    wanted = [[align_one(f, b, 4) for b in row]
              for f, row in zip(features, some, strict=True)]  # fmt: skip
    # Points lie within 6 cells: 2 float32 roundings of such a number, and those of two
    # sums of at most 6 products below 1.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=32 * 2**-24 * 6)
