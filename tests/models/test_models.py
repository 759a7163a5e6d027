"""Every model of models/ builds, keeps its shapes, trains, repeats under a seed."""

from __future__ import annotations

import types

import keras
import numpy as np
import pytest
from batches import losses

from models import (
    lstm_lm,
    mlp,
    mobilenet_v2,
    resnet,
    ssd,
    transformer,
    unet,
    wide_deep,
)

MODELS = [lstm_lm, mlp, mobilenet_v2, resnet, ssd, transformer, unet, wide_deep]
BATCH = 8

each_model = pytest.mark.parametrize("module", MODELS, ids=lambda m: m.__name__)


def made(module: types.ModuleType, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return module.build()


def weights(model: keras.Model) -> int:
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def arrays(x: object) -> list[np.ndarray]:
    return keras.tree.flatten(x)


CLASSIFIERS = [module for module in MODELS if module not in (ssd, wide_deep)]


@pytest.mark.parametrize("module", CLASSIFIERS, ids=lambda m: m.__name__)
def test_returns_one_vector_of_logits_per_label(module: types.ModuleType) -> None:
    x, y = module.example_batch(BATCH, seed=1)
    logits = made(module)(x)
    assert tuple(logits.shape[:-1]) == y.shape
    assert logits.shape[-1] > y.max()
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(("module", "columns"), [(ssd, 5 + 3), (wide_deep, 1)])
def test_returns_one_row_per_row_of_targets(
    module: types.ModuleType, columns: int
) -> None:
    x, y = module.example_batch(BATCH, seed=1)
    found = made(module)(x)
    assert tuple(found.shape) == (*y.shape[:-1], columns)
    assert np.isfinite(found).all()


@each_model
def test_is_float32_throughout(module: types.ModuleType) -> None:
    model = made(module)
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert model.output.dtype == "float32"


@each_model
@pytest.mark.slow
def test_training_lowers_the_loss_the_same_way_each_time(
    module: types.ModuleType,
) -> None:
    model, batch = made(module), module.example_batch(BATCH, seed=1)
    model.compile(keras.optimizers.Adam(1e-2), module.LOSS(), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    state = [*model.variables, *model.optimizer.variables]
    start = [variable.numpy() for variable in state]
    first = losses(model, batch, steps=5)
    assert first[-1] < first[0]
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    # Sums may be ordered differently from run to run: a few float32 roundings per step.
    np.testing.assert_allclose(losses(model, batch, steps=5), first, rtol=1e-3)


@each_model
def test_seeds_decide_weights_and_batches(module: types.ModuleType) -> None:
    same, again, other = made(module), made(module), made(module, seed=1)
    for a, b in zip(same.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    pairs = zip(same.get_weights(), other.get_weights(), strict=True)
    assert any((a != b).any() for a, b in pairs)
    batch, again_batch = (module.example_batch(BATCH, seed=3) for _ in range(2))
    for a, b in zip(arrays(batch), arrays(again_batch), strict=True):
        np.testing.assert_array_equal(a, b)
    changed = module.example_batch(BATCH, seed=4)
    assert all(
        (a != b).any() for a, b in zip(arrays(batch), arrays(changed), strict=True)
    )


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


def test_resnet20_with_identity_shortcuts_has_no_weights_in_them() -> None:
    """The same count to the last: convolutions, two a normalised channel, logits."""
    model = resnet.resnet_cifar(20, shortcuts="identity")
    stages = [
        (3, 16, 1),
        (16, 16, 6),
        (16, 32, 1),
        (32, 32, 5),
        (32, 64, 1),
        (64, 64, 5),
    ]
    kernels = sum(9 * a * b * count for a, b, count in stages)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert weights(model) == kernels + norms + 65 * 10 == 269_722
    with pytest.raises(ValueError, match="shortcuts are 'none'; there are projection"):
        resnet.resnet_cifar(20, shortcuts="none")


def test_resnet_identity_shortcuts_take_every_second_pixel() -> None:
    model = resnet.resnet_cifar(8, 10, (16, 16, 3), shortcuts="identity", width=2)
    add = model.get_layer("stage1_block0_add")
    before = model.get_layer("stage0_block0_relu").output
    short = keras.Model(model.input, [before, add.input[1]])
    x, _ = resnet.example_batch(2, seed=0)
    before, found = (np.asarray(y) for y in short(x))
    np.testing.assert_array_equal(found[..., :2], before[:, ::2, ::2])
    assert found.shape == (2, 8, 8, 4)
    assert not found[..., 2:].any()


def test_resnet50_has_the_weights_of_the_paper_and_scales() -> None:
    small = resnet.resnet50(7, (32, 32, 3), width=4, blocks=(1, 1))
    assert small(np.zeros((2, 32, 32, 3), np.float32)).shape == (2, 7)
    assert weights(resnet.resnet50()) == 25_557_032  # As torchvision documents.


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


def test_mobilenet_v2_has_the_weights_of_the_paper() -> None:
    whole = mobilenet_v2.build(
        input_shape=(224, 224, 3), classes=1000, width=1.0, stages=mobilenet_v2.PAPER
    )
    assert weights(whole) == 3_504_872  # As torchvision documents.


def test_mobilenet_v2_adds_shortcuts_only_where_shapes_agree() -> None:
    model = mobilenet_v2.build(width=1.0)
    found = [layer for layer in model.layers if isinstance(layer, keras.layers.Add)]
    assert len(found) == 3  # blocks but the first of a stage: 0, 1 and 2


def test_unet_has_the_convolutions_of_the_paper() -> None:
    whole = unet.build(input_shape=(64, 64, 1), width=64, depth=4)
    kinds = (keras.layers.Conv2D, keras.layers.Conv2DTranspose)
    found = [layer for layer in whole.layers if isinstance(layer, kinds)]
    assert len(found) == 23  # Ronneberger et al., section 2
    assert max(layer.filters for layer in found) == 1024


def test_unet_joins_each_level_to_its_own() -> None:
    model = unet.build()
    for level in range(2):
        skip = model.get_layer(f"up{level}_skip")
        sources = {op.name for op in (t._keras_history.operation for t in skip.input)}
        assert sources == {f"down{level}_b", f"up{level}_conv"}


def test_unet_refuses_sides_that_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="18x16 cannot be halved 2 times"):
        unet.build(input_shape=(18, 16, 1))
