"""Every model of models/ builds, keeps its shapes, trains, repeats under a seed."""

from __future__ import annotations

import types

import keras
import numpy as np
import pytest

from models import lstm_lm, mlp, resnet, transformer

MODELS = [mlp, resnet, lstm_lm, transformer]
BATCH = 8

each_model = pytest.mark.parametrize("module", MODELS, ids=lambda m: m.__name__)


def made(module: types.ModuleType, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return module.build()


def losses(module: types.ModuleType, steps: int) -> list[float]:
    """Trains one batch over and over and returns the loss before each step."""
    model = made(module)
    model.compile(keras.optimizers.Adam(1e-2), module.LOSS(), jit_compile=False)
    x, y = module.example_batch(BATCH, seed=1)
    return [float(model.train_on_batch(x, y)) for _ in range(steps)]


@each_model
def test_returns_one_vector_of_logits_per_label(module: types.ModuleType) -> None:
    x, y = module.example_batch(BATCH, seed=1)
    logits = made(module)(x)
    assert tuple(logits.shape[:-1]) == y.shape
    assert logits.shape[-1] > y.max()
    assert np.isfinite(logits).all()


@each_model
def test_is_float32_throughout(module: types.ModuleType) -> None:
    model = made(module)
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert model.output.dtype == "float32"


@each_model
def test_training_lowers_the_loss_the_same_way_each_time(
    module: types.ModuleType,
) -> None:
    first = losses(module, steps=5)
    assert first[-1] < first[0]
    # Sums may be ordered differently from run to run: a few float32 roundings per step.
    np.testing.assert_allclose(losses(module, steps=5), first, rtol=1e-3)


@each_model
def test_seeds_decide_weights_and_batches(module: types.ModuleType) -> None:
    same, again, other = made(module), made(module), made(module, seed=1)
    for a, b in zip(same.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    pairs = zip(same.get_weights(), other.get_weights(), strict=True)
    assert any((a != b).any() for a, b in pairs)
    x, y = module.example_batch(BATCH, seed=3)
    again_x, again_y = module.example_batch(BATCH, seed=3)
    np.testing.assert_array_equal(x, again_x)
    np.testing.assert_array_equal(y, again_y)
    assert (x != module.example_batch(BATCH, seed=4)[0]).any()


def test_resnet20_has_the_layers_and_weights_of_the_paper() -> None:
    model = resnet.resnet_cifar(20)
    main = [
        layer
        for layer in model.layers
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
        and "shortcut" not in layer.name
    ]
    assert len(main) == 20
    kernels = sum(int(np.prod(layer.kernel.shape)) for layer in main)
    assert round(kernels / 1e6, 2) == 0.27  # He et al., table 6: 0.27 M.


def test_resnet50_has_the_weights_of_the_paper_and_scales() -> None:
    small = resnet.resnet50(7, (32, 32, 3), width=4, blocks=(1, 1))
    assert small(np.zeros((2, 32, 32, 3), np.float32)).shape == (2, 7)
    whole = resnet.resnet50()
    weights = sum(int(np.prod(v.shape)) for v in whole.trainable_variables)
    assert weights == 25_557_032  # As torchvision documents for resnet50.


def test_resnet_refuses_a_depth_that_is_not_6n_plus_2() -> None:
    with pytest.raises(ValueError, match=r"depth is 21; a CIFAR ResNet has 6n \+ 2"):
        resnet.resnet_cifar(21)


def test_transformer_refuses_a_width_that_the_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match="width 30 is not a multiple of heads 4"):
        transformer.build(width=30)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_transformer_does_not_see_the_future(activation: str) -> None:
    model = transformer.build(activation=activation)
    x, _ = transformer.example_batch(2, seed=0)
    changed = x.copy()
    changed[:, 9] = (changed[:, 9] + 1) % 200
    before, after = np.asarray(model(x)), np.asarray(model(changed))
    np.testing.assert_allclose(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert np.abs(before[:, 9:] - after[:, 9:]).max() > 1e-3
