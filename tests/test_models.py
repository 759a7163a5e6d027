"""Every model of models/ builds, keeps its shapes, trains, repeats under a seed."""

from __future__ import annotations

import types

import keras
import numpy as np
import pytest

from models import (
    default_boxes,
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


def losses(module: types.ModuleType, steps: int) -> list[float]:
    """Trains one batch over and over and returns the loss before each step."""
    model = made(module)
    model.compile(keras.optimizers.Adam(1e-2), module.LOSS(), jit_compile=False)
    x, y = module.example_batch(BATCH, seed=1)
    return [float(model.train_on_batch(x, y)) for _ in range(steps)]


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


def test_lstm_lm_has_the_weights_of_the_paper() -> None:
    sizes = {"vocabulary": 10_000, "steps": 35}
    medium = weights(lstm_lm.build(units=650, **sizes))
    large = weights(lstm_lm.build(units=1500, **sizes))
    # Zaremba et al., section 4.1: about 20 and 66 million.
    assert (round(medium / 1e6), round(large / 1e6)) == (20, 66)


def test_lstm_lm_takes_gru_layers_and_refuses_other_cells() -> None:
    model = lstm_lm.build(cell="gru", units=8)
    assert sum(isinstance(layer, keras.layers.GRU) for layer in model.layers) == 2
    with pytest.raises(ValueError, match="cell is 'rnn'; there are lstm, gru"):
        lstm_lm.build(cell="rnn")


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


def test_wide_deep_adds_a_linear_part() -> None:
    """A row's wide weight moves the logit by itself times how often the row occurs."""
    model = made(wide_deep)
    (ids, numbers), _ = wide_deep.example_batch(2, seed=0)
    ids[0, 1] = ids[0, 0]
    before = np.asarray(model([ids, numbers]))
    table = np.zeros((1000, 1), np.float32)
    table[ids[0, 0]] = 0.5
    model.get_layer("wide").set_weights([table])
    after = np.asarray(model([ids, numbers]))
    assert ids[0, 0] not in ids[1]
    np.testing.assert_allclose(after - before, [[1.0], [0.0]], atol=1e-6)


def test_wide_deep_keeps_each_field_in_its_rows() -> None:
    (ids, _), _ = wide_deep.example_batch(64, seed=0, rows=600, fields=6)
    np.testing.assert_array_equal(ids // 100, np.tile(np.arange(6), (64, 1)))


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
    assert weights(whole) == 35_641_826 - (91 - 21) * (inputs + boxes)


def test_ssd_normalises_where_asked() -> None:
    kind = keras.layers.BatchNormalization
    counts = [
        sum(isinstance(layer, kind) for layer in ssd.build(normalize=n).layers)
        for n in (False, True)
    ]
    assert counts == [0, 13 + 2 + 2]


def test_ssd_refuses_images_that_are_not_square_or_too_small() -> None:
    for shape in [(64, 48, 3), (32, 32, 3)]:
        with pytest.raises(ValueError, match="square ones of at least 33"):
            ssd.build(input_shape=shape)


def test_offsets_lead_back_to_the_boxes() -> None:
    random = np.random.default_rng(0)
    defaults = default_boxes.default_boxes([4, 2, 1])
    low = random.uniform(0, 0.5, (len(defaults), 2)).astype(np.float32)
    boxes = np.concatenate([low, low + random.uniform(0.1, 0.5, low.shape)], 1)
    boxes = boxes.astype(np.float32)
    offsets = default_boxes.encode(boxes, defaults)
    np.testing.assert_allclose(
        default_boxes.decode(offsets, defaults), boxes, rtol=0, atol=1e-5
    )
    zero = np.zeros_like(boxes)
    np.testing.assert_array_equal(
        default_boxes.decode(zero, defaults), default_boxes.corners(defaults)
    )


def test_overlap_is_intersection_over_union() -> None:
    a = np.array([[0.0, 0.0, 0.5, 0.5]], np.float32)
    b = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]], np.float32)
    np.testing.assert_allclose(default_boxes.jaccard(a, b), [[1, 1 / 3, 0]], rtol=1e-6)


def test_matching_gives_each_object_its_best_box_and_all_that_overlap() -> None:
    """An object that overlaps no box by half still gets one; padding gets none."""
    defaults = np.array(
        [[0.25, 0.25, 0.5, 0.5], [0.25, 0.3, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]],
        np.float32,
    )
    boxes = np.array([[0, 0, 0.5, 0.5], [0.9, 0.9, 1, 1], [0, 0, 1, 1]], np.float32)
    labels = np.array([2, 1, 0], np.int32)
    found = np.asarray(default_boxes.target(boxes, labels, defaults))
    np.testing.assert_array_equal(found[:, 4], [2, 2, 1])
    np.testing.assert_allclose(found[0, :4], 0, atol=1e-6)
    back = default_boxes.decode(found[:, :4], defaults)
    np.testing.assert_allclose(back, boxes[[0, 0, 1]], atol=1e-6)


def test_no_objects_match_nothing() -> None:
    defaults = default_boxes.default_boxes([4, 2, 1])
    boxes, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int32)
    found = np.asarray(default_boxes.target(boxes, labels, defaults))
    assert found.shape == (len(defaults), 5)
    assert not found.any()


def test_hard_negatives_are_the_three_worst_to_a_match() -> None:
    loss = np.array([[9, 5, 1, 4, 2, 3], [1, 2, 3, 4, 5, 6]], np.float32)
    matched = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.float32)
    found = np.asarray(ssd.hard_negatives(loss, matched))
    np.testing.assert_array_equal(found, [[0, 1, 0, 1, 0, 1], [0] * 6])


def test_hard_negatives_are_at_most_all_that_are_left() -> None:
    matched = np.array([[1, 1, 0, 0]], np.float32)
    found = np.asarray(ssd.hard_negatives(np.ones((1, 4), np.float32), matched))
    np.testing.assert_array_equal(found, [[0, 0, 1, 1]])


def test_smooth_l1_is_square_below_one_and_linear_beyond() -> None:
    found = np.asarray(ssd.smooth_l1(np.array([[0.5, -0.5], [3.0, 0.0]], np.float32)))
    np.testing.assert_allclose(found, [0.25, 2.5])


def test_multibox_loss_is_a_mean_over_matched_boxes() -> None:
    """Equation 1, by hand: even logits cost log 2 a box; one match, three negatives."""
    target = np.zeros((1, 6, 5), np.float32)
    target[0, 0] = [0.5, 0, 0, 0, 1]
    even = np.zeros((1, 6, 6), np.float32)
    loss = float(ssd.LOSS()(target, even))
    assert loss == pytest.approx(0.125 + 4 * np.log(2), rel=1e-6)
    assert float(ssd.LOSS()(np.zeros_like(target), even)) == 0.0


def test_detections_of_a_perfect_prediction_are_the_objects() -> None:
    sides = ssd.map_sides((64, 64, 3))
    defaults = default_boxes.default_boxes(sides)
    boxes = np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.8]], np.float32)
    target = default_boxes.target(boxes, np.array([2, 3], np.int32), defaults)
    logits = 20 * keras.ops.one_hot(keras.ops.cast(target[:, 4], "int32"), 4)
    whole = np.concatenate([target[:, :4], logits], 1)[None]
    found, scores, kinds, counts = default_boxes.detect(whole, defaults, most=5)
    assert counts.numpy().tolist() == [2]
    order = np.argsort(kinds[0, :2])
    np.testing.assert_array_equal(np.asarray(kinds)[0, order], [2, 3])
    np.testing.assert_allclose(np.asarray(found)[0, order], boxes, atol=1e-5)
    assert np.asarray(scores)[0, :2].min() > 0.99
