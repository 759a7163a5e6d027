"""Default boxes: what they match, and what is found with them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from models import default_boxes, ssd
from models.boxes import decode, jaccard


def test_matching_gives_each_object_its_best_box_and_all_that_overlap() -> None:
    """An object that overlaps no box by half still gets one; padding gets none."""
    defaults = np.array(
        [[0.25, 0.25, 0.5, 0.5], [0.25, 0.3, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]],
        np.float32,
    )
    boxes = np.array([[0, 0, 0.5, 0.5], [0.9, 0.9, 1, 1], [0, 0, 1, 1]], np.float32)
    labels = np.array([2, 1, 0], np.int32)
    found = np.asarray(default_boxes.targets(boxes[None], labels[None], defaults))[0]
    np.testing.assert_array_equal(found[:, 4], [2, 2, 1])
    np.testing.assert_allclose(found[0, :4], 0, atol=1e-6)
    back = decode(found[:, :4], defaults)
    np.testing.assert_allclose(back, boxes[[0, 0, 1]], atol=1e-6)


def test_no_objects_match_nothing() -> None:
    defaults = default_boxes.default_boxes([4, 2, 1])
    boxes, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int32)
    found = np.asarray(default_boxes.targets(boxes[None], labels[None], defaults))[0]
    assert found.shape == (len(defaults), 5)
    assert not found.any()


def test_detections_of_a_perfect_prediction_are_the_objects() -> None:
    sides = ssd.map_sides((64, 64, 3))
    defaults = default_boxes.default_boxes(sides)
    boxes = np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.8]], np.float32)
    labels = np.array([[2, 3]], np.int32)
    target = default_boxes.targets(boxes[None], labels, defaults).numpy()[0]
    logits = 20 * keras.ops.one_hot(keras.ops.cast(target[:, 4], "int32"), 4)
    whole = np.concatenate([target[:, :4], logits], 1)[None]
    found, scores, kinds, counts = default_boxes.detect(whole, defaults, most=5)
    assert counts.numpy().tolist() == [2]
    order = np.argsort(kinds[0, :2])
    np.testing.assert_array_equal(np.asarray(kinds)[0, order], [2, 3])
    np.testing.assert_allclose(np.asarray(found)[0, order], boxes, atol=1e-5)
    assert np.asarray(scores)[0, :2].min() > 0.99


def test_matching_in_a_batch_agrees_with_a_loop() -> None:
    """Section 2.2, as loops over objects and boxes; padding stands anywhere."""
    random = np.random.default_rng(0)
    defaults = default_boxes.default_boxes([5, 3, 1])
    low = random.uniform(0, 0.6, (3, 4, 2))
    size = random.uniform(0.05, 0.4, low.shape)
    boxes = np.concatenate([low, low + size], -1).astype(np.float32)
    labels = random.integers(0, 3, (3, 4)).astype(np.int32)
    boxes[labels == 0] = 0
    compiled = tf.function(default_boxes.targets, jit_compile=True)
    found = compiled(boxes, labels, defaults).numpy()
    for image in range(3):
        overlap = jaccard(boxes[image], default_boxes.corners(defaults)).numpy()
        wanted = np.zeros(len(defaults))
        for box in range(len(defaults)):
            real = [o for o in range(4) if labels[image, o]]
            best = max(real, key=lambda o, b=box: overlap[o, b], default=None)
            if best is not None and overlap[best, box] > 0.5:
                wanted[box] = labels[image, best]
        for item in range(4):
            if labels[image, item]:
                wanted[overlap[item].argmax()] = labels[image, item]
        np.testing.assert_array_equal(found[image, :, 4], wanted)
