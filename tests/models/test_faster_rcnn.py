"""Faster R-CNN: shapes, weights, losses that fall, and what is found after training."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import faster_rcnn

FEW = dataclasses.replace(faster_rcnn.SMALL, scales=(0.4,), ratios=(1.0,))
X, (BOXES, LABELS) = faster_rcnn.example_batch(4, seed=1)


def test_predictions_have_a_row_for_each_anchor() -> None:
    model = faster_rcnn.build()
    objectness, offsets = model(X)
    assert model.anchors.shape == (4 * 4 * 9, 4)  # 64 pixels at a stride of 16
    assert objectness.shape == (4, 144)
    assert offsets.shape == (4, 144, 4)


def test_heads_have_the_layers_of_the_paper() -> None:
    """Weights of VGG-16's convolutions and dense layers, and of the new ones."""
    model = faster_rcnn.build(width=64, hidden=64)
    assert model.features.count_params() == 14_714_688  # VGG-16 without its top
    assert model.proposer.count_params() == 512 * 512 * 9 + 512 + 513 * 9 * 5
    assert model.head.get_layer("fc6").kernel.shape == (7 * 7 * 512, 64)
    assert model.head.get_layer("box").kernel.shape == (64, 3 * 4)
    assert model.head.get_layer("class").kernel.shape == (64, 3 + 1)


@pytest.fixture(scope="module")
def trained() -> tuple[faster_rcnn.FasterRCNN, list[float]]:
    """A small model fitted to one batch by a compiled step, and its losses."""
    keras.utils.set_random_seed(0)
    model = faster_rcnn.build(width=4, stages=3, normalize=True, settings=FEW)
    optimizer = keras.optimizers.Adam(5e-3)

    @tf.function
    def step(seed: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = faster_rcnn.loss(model, X, BOXES, LABELS, seed)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return model, [float(step(tf.constant([0, n]))) for n in range(20)]


@pytest.mark.slow
def test_training_lowers_the_loss(trained: tuple) -> None:
    losses = trained[1]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


def test_detections_have_fixed_shapes_and_real_classes(trained: tuple) -> None:
    boxes, scores, kinds, counts = faster_rcnn.detect(trained[0], X, most=7)
    assert boxes.shape == (4, 7, 4)
    assert scores.shape == kinds.shape == (4, 7)
    assert (counts.numpy() <= 7).all()
    assert np.isin(kinds, [1, 2, 3]).all()


def test_the_loss_is_a_function_of_the_seed() -> None:
    model = faster_rcnn.build(width=1, hidden=4)
    one, same, other = (
        float(faster_rcnn.loss(model, X, BOXES, LABELS, tf.constant([3, s])))
        for s in (1, 1, 2)
    )
    assert one == same != other


def test_images_without_objects_have_a_loss_of_background_only() -> None:
    model = faster_rcnn.build(width=1, hidden=4)
    found = faster_rcnn.losses(model, X, BOXES * 0, LABELS * 0, tf.constant([0, 0]))
    assert {k: float(v) for k, v in found.items() if "box" in k} == {
        "rpn_box": 0.0, "box": 0.0,
    }  # fmt: skip
    assert float(found["class"]) > 0
    # Even logits at first: nearly log 2 for an anchor.
    assert float(found["rpn_class"]) == pytest.approx(np.log(2), rel=0.05)


def test_a_step_compiles_to_one_program() -> None:
    model = faster_rcnn.build(width=1, hidden=4, stages=2, settings=FEW)

    @tf.function(jit_compile=True)
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = faster_rcnn.loss(model, X, BOXES, LABELS, tf.constant([0, 1]))
        return tape.gradient(loss, model.trainable_variables)

    assert all(np.isfinite(g).all() for g in gradients())
