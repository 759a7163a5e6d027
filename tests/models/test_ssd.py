"""SSD: the paper's layers, maps and loss, by count and by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from models import default_boxes, ssd


def test_ssd300_has_the_maps_and_boxes_of_the_paper() -> None:
    sides = ssd.map_sides((300, 300, 3))
    assert sides == [38, 19, 10, 5, 3, 1]  # Liu et al., figure 2
    assert len(default_boxes.default_boxes(sides)) == 8732
    small = {"input_shape": (300, 300, 3), "width": 1, "classes": 20}
    assert ssd.build(**small).output.shape == (None, 8732, 25)


def test_ssd_has_the_weights_of_the_paper() -> None:
    """Its layers' channels, and the sum that others count."""
    whole = ssd.build(input_shape=(300, 300, 3), classes=20, width=64)
    shapes = {layer.name: layer.kernel.shape for layer in whole.layers
              if isinstance(layer, keras.layers.Conv2D)}  # fmt: skip
    assert shapes["fc6_conv"] == (3, 3, 512, 1024)
    assert shapes["fc7_conv"] == (1, 1, 1024, 1024)
    assert shapes["conv8_2_conv"] == (3, 3, 256, 512)
    assert shapes["conv11_2_conv"] == (3, 3, 128, 256)
    # What torchvision documents for ssd300_vgg16 with its 91 classes, here with 20: the
    # heads differ by (91 - 21) logits a box and cell, of which there are
    # 4 * 512 + 6 * 1024 + 6 * 512 + 6 * 256 + 4 * 256 + 4 * 256 inputs, times 9.
    boxes = 4 + 6 + 6 + 6 + 4 + 4
    inputs = 9 * (4 * 512 + 6 * 1024 + 6 * 512 + 6 * 256 + 4 * 256 + 4 * 256)
    assert whole.count_params() == 35_641_826 - (91 - 21) * (inputs + boxes)


def test_heads_begin_as_asked_and_no_two_alike() -> None:
    keras.utils.set_random_seed(0)
    model = ssd.build(width=8, heads=0.01)
    kernels = [layer.kernel for layer in model.layers if "head" in layer.name
               and isinstance(layer, keras.layers.Conv2D)]  # fmt: skip
    values = [kernel.numpy().ravel() for kernel in kernels]
    for one in values:  # 4 standard errors
        assert abs(one.std() / 0.01 - 1) < 4 / (2 * one.size) ** 0.5
    firsts = {tuple(one[:4]) for one in values}
    assert len(firsts) == len(values) == 2 * len(ssd.map_sides((64, 64, 3)))


def test_ssd_normalises_where_asked() -> None:
    kind = keras.layers.BatchNormalization
    asked = ({}, {"normalize": True}, {"normalize": True, "normalize_base": False})
    counts = [
        sum(isinstance(layer, kind) for layer in ssd.build(**each).layers)
        for each in asked
    ]
    assert counts == [0, 13 + 2 + 2, 2 + 2]  # conv1_1 to conv5_3, fc6, fc7, conv8


@pytest.mark.parametrize("base", [True, False])
def test_a_scale_changes_units_and_not_what_is_found(base: bool) -> None:
    """But for the epsilon of batch norm, 1e-3 beside variances of about 1.

    It takes half of that off each of 17 layers and of the norm: 1e-2, and rounding.
    """
    images = np.random.default_rng(0).uniform(-1, 1, (2, 48, 48, 3)).astype("f")
    found = []
    for scale in (1.0, 128.0):
        keras.utils.set_random_seed(0)
        told = {"normalize": True, "normalize_base": base, "scale": scale}
        model = ssd.build(input_shape=(48, 48, 3), **told)
        found.append(model(images, training=True).numpy())
        inside = keras.Model(model.input, model.get_layer("conv4_3_relu").output)
        assert 0.1 < np.abs(inside(images, training=True)).mean() / scale < 10
    assert np.abs(found[1] - found[0]).max() <= 2e-2 * np.abs(found[0]).max()


def test_ssd_refuses_images_that_are_not_square_or_too_small() -> None:
    for shape in [(64, 48, 3), (32, 32, 3)]:
        with pytest.raises(ValueError, match="square ones of at least 33"):
            ssd.build(input_shape=shape)


def test_hard_negatives_are_the_three_worst_to_a_match() -> None:
    loss = np.array([[9, 5, 1, 4, 2, 3], [1, 2, 3, 4, 5, 6]], np.float32)
    matched = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.float32)
    found = np.asarray(ssd.hard_negatives(loss, matched))
    np.testing.assert_array_equal(found, [[0, 1, 0, 1, 0, 1], [0] * 6])


def test_hard_negatives_are_at_most_all_that_are_left() -> None:
    matched = np.array([[1, 1, 0, 0]], np.float32)
    found = np.asarray(ssd.hard_negatives(np.ones((1, 4), np.float32), matched))
    np.testing.assert_array_equal(found, [[0, 0, 1, 1]])


def test_multibox_loss_is_a_mean_over_matched_boxes() -> None:
    """Equation 1, by hand: even logits cost log 2 a box; one match, three negatives."""
    target = np.zeros((1, 6, 5), np.float32)
    target[0, 0] = [0.5, 0, 0, 0, 1]
    even = np.zeros((1, 6, 6), np.float32)
    loss = float(ssd.LOSS()(target, even))
    assert loss == pytest.approx(0.125 + 4 * np.log(2), rel=1e-6)
    assert float(ssd.LOSS()(np.zeros_like(target), even)) == 0.0
