"""FCN: layers of the paper, interpolation, skips, pixels that are left out."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from batches import losses

from models import fcn


def test_weights_are_those_of_the_paper() -> None:
    """VGG-16's, dense layers as convolutions, scores of three stages, upsampling."""
    width, classes = 4, 21
    counts = [3, *(width * m for m in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8))]
    vgg = sum((9 * a + 1) * b for a, b in zip(counts, counts[1:], strict=False))
    model = fcn.build(input_shape=(32, 32, 3), width=width, classes=classes)
    fc6, pool4, pool3 = 64 * width, 8 * width, 4 * width
    dense = (pool4 * 7 * 7 + 1) * fc6 + (fc6 + 1) * fc6
    scores = (fc6 + 1 + pool4 + 1 + pool3 + 1) * classes
    upsampling = (4 * 4 + 4 * 4 + 16 * 16) * classes**2
    assert model.count_params() == vgg + dense + scores + upsampling


@pytest.mark.parametrize(("stride", "skips"), [(8, 2), (16, 1), (32, 0)])
def test_a_finer_stride_adds_a_skip(stride: int, skips: int) -> None:
    model = fcn.build(input_shape=(64, 32, 3), stride=stride, width=1)
    assert model.output.shape == (None, 64, 32, 4)
    adds = [layer for layer in model.layers if isinstance(layer, keras.layers.Add)]
    assert len(adds) == skips


@pytest.mark.parametrize("factor", [2, 8])
def test_upsampling_starts_as_interpolation(factor: int) -> None:
    """Away from the border, a plane stays a plane, and channels stay apart."""
    rows, columns = np.mgrid[:6, :6].astype(np.float32)
    x = np.stack([rows + 2 * columns, rows * 0], -1)[None]
    layer = keras.layers.Conv2DTranspose(
        2, 2 * factor, factor, "same", use_bias=False,
        kernel_initializer=fcn.Bilinear(),
    )  # fmt: skip
    fine = (np.arange(6 * factor) + 0.5) / factor - 0.5
    wanted = fine[:, None] + 2 * fine
    inner = slice(factor, -factor)
    found = layer(x).numpy()[0]
    np.testing.assert_allclose(found[inner, inner, 0], wanted[inner, inner], atol=1e-5)
    assert not found[..., 1].any()


def test_void_pixels_have_no_loss() -> None:
    labels = np.array([[[0, fcn.VOID], [1, fcn.VOID]]])
    logits = np.random.default_rng(0).normal(size=(1, 2, 2, 3)).astype(np.float32)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = -(logs[0, 0, 0, 0] + logs[0, 1, 0, 1]) / 2
    assert float(fcn.LOSS()(labels, logits)) == pytest.approx(wanted, rel=1e-5)
    assert float(fcn.LOSS()(np.full((1, 2, 2), fcn.VOID), logits)) == 0.0


def test_other_strides_and_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="stride is 4; there are 8, 16, 32"):
        fcn.build(stride=4)
    with pytest.raises(ValueError, match="images of 48x64; the sides must be"):
        fcn.build(input_shape=(48, 64, 3))


def test_it_learns_a_batch() -> None:
    model = fcn.build(input_shape=(32, 32, 3), width=2, normalize=True)
    model.compile(keras.optimizers.Adam(1e-2), fcn.LOSS(), jit_compile=False)
    batch = fcn.example_batch(4, seed=0, input_shape=(32, 32, 3))
    found = losses(model, batch, steps=12)
    assert found[0] == pytest.approx(np.log(4), rel=1e-5)  # scores start at zero
    assert found[-1] < 0.8 * found[0]
