"""What tasks do with data: order, streams, shifted targets, stages, evaluation."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from convergence import task
from convergence.data import pairs, scenes, text
from convergence.families import FAMILIES
from convergence.tasks import (
    bert,
    classify,
    detection,
    faster_rcnn,
    language,
    progressive_gan,
)
from convergence.tasks import pairs as pair_tasks
from models import regions
from models.boxes import corners, jaccard
from models.faster_rcnn import SMALL


def test_every_epoch_has_all_rows_in_an_order_of_its_own() -> None:
    taken = [task.rows(3, step, batch=4, count=10) for step in range(5)]
    flat = np.concatenate(taken)
    first, second = flat[:10], flat[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)
    assert list(first) != list(task.rows(4, 0, batch=10, count=10))
    # A step is a function of seed and number alone.
    np.testing.assert_array_equal(task.rows(3, 2, batch=4, count=10), taken[2])


def test_noise_depends_on_seed_and_step() -> None:
    def draw(seed: int, step: int) -> float:
        return float(task.noise(seed, step).random())

    assert draw(1, 2) == draw(1, 2)
    assert len({draw(1, 2), draw(2, 1), draw(1, 3)}) == 3


def test_the_rate_rises_and_falls_to_zero() -> None:
    rate = task.cosine(0.5, 100)
    values = [float(rate(step)) for step in range(101)]
    assert values[0] == pytest.approx(0.05)
    assert max(values) == pytest.approx(0.5)
    assert int(np.argmax(values)) == 5
    assert values[-1] == pytest.approx(0.0, abs=1e-6)


def test_outputs_are_of_every_row_once() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    x = np.random.default_rng(0).random((7, 2), np.float32)
    found = task.outputs(task.inference(model), (x,), 3)
    # Products of other batch sizes may be summed in another order: 2 terms each.
    np.testing.assert_allclose(found, model(x).numpy(), rtol=4e-7, atol=1e-7)


def test_windows_follow_one_another_in_each_stream() -> None:
    words = np.arange(25)
    first, after, begins = language.window(words, 0, rows=2, steps=4)
    np.testing.assert_array_equal(first, [[0, 1, 2, 3], [12, 13, 14, 15]])
    np.testing.assert_array_equal(after, first + 1)
    assert begins
    second, _, begins = language.window(words, 1, rows=2, steps=4)
    np.testing.assert_array_equal(second, first + 4)
    assert not begins
    again, _, begins = language.window(words, 3, rows=2, steps=4)
    np.testing.assert_array_equal(again, first)
    assert begins


def test_the_language_model_reads_on_from_where_it_was() -> None:
    size = FAMILIES["lstm_lm"].quick
    size = dataclasses.replace(size, model={**size.model, "units": 4})
    made = language.make(language.load(size, None), size)
    (part,) = made.parts(0)
    assert not any(state.numpy().any() for state in made.carried)
    part.loss(tf.nest.map_structure(tf.convert_to_tensor, made.batch(0, 0)))
    assert all(state.numpy().any() for state in made.carried)


def test_the_decoder_reads_start_and_then_the_target() -> None:
    target = np.array([[7, 8, pairs.END, pairs.PAD], [5, 6, 9, pairs.END]])
    expected = [[pairs.START, 7, 8, pairs.PAD], [pairs.START, 5, 6, 9]]
    np.testing.assert_array_equal(pair_tasks.shifted(target), expected)


def test_stretches_begin_with_the_mark_of_a_sequence() -> None:
    found = bert.stretches(np.arange(50, 90), np.array([0, 7]), 4)
    mark = text.SPECIALS.index("<cls>")
    np.testing.assert_array_equal(found, [[mark, 51, 52, 53], [mark, 58, 59, 60]])


def test_the_gan_grows_through_its_stages_and_fades_in() -> None:
    size = dataclasses.replace(
        FAMILIES["progressive_gan"].quick, steps=30, model={"channels": (8, 8, 4)}
    )
    made = progressive_gan.make(progressive_gan.load(size, None), size)
    assert made.stages == (0, 1, 2)
    assert [made.stage(step) for step in (0, 9, 10, 29)] == [0, 0, 1, 2]
    sides, alphas = zip(
        *(
            (b[0].shape[1], float(b[3]))
            for b in (made.batch(0, s) for s in (0, 10, 19))
        ),
        strict=True,
    )
    assert sides == (4, 8, 8)
    assert alphas == (1.0, pytest.approx(0.2), 1.0)
    small, grown = (set(map(id, made.parts(s)[0].variables)) for s in (0, 1))
    assert len(grown) > len(small)


def test_the_gan_is_judged_by_the_running_mean_of_its_generator() -> None:
    """Of weights 1, 2, 3, … the mean is by hand; afterwards the weights are back."""
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.75)
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply([keras.ops.convert_to_tensor([-1.0])], [variable])
    with progressive_gan.averaged(optimizer, [variable]):
        held = float(variable.numpy()[0])
    assert held == 0.75 * (0.75 * 2.0 + 0.25 * 3.0) + 0.25 * 4.0
    assert variable.numpy() == [4.0]


@pytest.mark.parametrize(
    ("steps", "decay"), [(8000, 0.999), (80_000, 0.999), (80, 0.9)]
)
def test_the_mean_is_of_the_last_eighth_of_a_short_run(
    steps: int, decay: float
) -> None:
    size = dataclasses.replace(FAMILIES["progressive_gan"].quick, steps=steps)
    made = progressive_gan.make(progressive_gan.load(size, None), size)
    judge, deceive = (part.updates[0][0] for part in made.parts(0))
    assert not judge.use_ema
    assert deceive.use_ema
    assert deceive.ema_momentum == pytest.approx(decay)


def test_small_images_are_framed() -> None:
    found = progressive_gan.fitted(np.ones((2, 5, 5, 1)), 8)
    assert found.shape == (2, 8, 8, 1)
    assert (found == 1).sum() == 50


def test_large_images_are_framed_and_averaged_down() -> None:
    pixels = np.arange(2 * 7 * 7, dtype=np.float32).reshape(2, 7, 7, 1)
    found = progressive_gan.fitted(pixels, 4)  # one column and row of background
    assert found.shape == (2, 4, 4, 1)
    np.testing.assert_array_equal(found[0, 0, 0, 0], pixels[0, :2, :2].mean())
    edge = (pixels[0, 6, 6, 0] - 3.0) / 4
    np.testing.assert_array_equal(found[0, 3, 3, 0], np.float32(edge))


def test_finding_every_object_is_a_precision_of_1() -> None:
    split = scenes.digits(7, 1, 40, 3)
    data = scenes.Scenes("x", split, split, 40, ("a", "b", "c"))
    told = iter(range(0, 8, 4))

    def detect(images: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = np.arange(next(told), 8)[:4].clip(max=6)
        labels = split.labels[rows]
        scores = (labels > 0).astype(np.float32)
        counts = (labels > 0).sum(1)
        return tuple(map(tf.constant, (split.boxes[rows], scores, labels, counts)))

    # The 11-point rule sums eleven shares of 1/11.
    one = pytest.approx(1.0)
    assert detection.precision(data, detect, 4) == {"a": one, "b": one, "c": one}


def test_anchors_are_of_the_sizes_of_each_class() -> None:
    """90 objects of side 0.2, 5 of 0.05 and 5 of 0.5: each class weighs the same."""
    sides = np.repeat([0.2, 0.05, 0.5], [90, 5, 5])
    boxes = np.zeros((10, 11, 4), np.float32)
    boxes[:, :10, 2:] = sides.reshape(10, 10)[..., None] * np.array([2.0, 0.5])
    labels = np.zeros((10, 11), np.int32)
    labels[:, :10] = np.repeat([1, 2, 3], [90, 5, 5]).reshape(10, 10)
    split = scenes.Split(boxes, boxes, labels, labels > 9, boxes)
    assert faster_rcnn.scales(split) == pytest.approx((0.05, 0.2, 0.5))
    assert faster_rcnn.scales(split, 1) == pytest.approx((0.2,))


def test_anchors_of_their_sizes_cover_more_objects_than_others() -> None:
    """Objects that an anchor overlaps as the second stage wants it."""
    told = {"side": 48, "classes": 2}
    size = dataclasses.replace(FAMILIES["faster_rcnn"].quick, data=told)
    data = detection.load(size, None)
    model = faster_rcnn.make(data, size).model
    own = tf.constant(data.train.boxes[data.train.labels > 0])

    def covered(sides: Sequence[float]) -> float:
        cells = model.features.output.shape[1:3]
        found = regions.anchors(cells, sides, model.settings.ratios)
        best = jaccard(own, corners(found)).numpy().max(axis=1)
        return float(np.mean(best >= regions.REGION_OBJECT))

    chosen = covered(model.settings.scales)
    assert chosen > 0.75
    assert chosen > covered(SMALL.scales) + 0.05


def test_augmented_images_are_crops_and_mirror_images() -> None:
    random = np.random.default_rng(0)
    x = random.random((40, 6, 6, 2), np.float32) + 1.0
    found = classify.augmented(x, 2, np.random.default_rng(1))
    assert found.shape == x.shape
    mirrored = 0
    for one, own in zip(found, x, strict=True):
        framed = np.pad(own, ((2, 2), (2, 2), (0, 0)))
        crops = [framed[i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        plain = any(np.array_equal(one, crop) for crop in crops)
        mirrored += not plain
        assert plain or any(np.array_equal(one, crop[:, ::-1]) for crop in crops)
    assert 10 <= mirrored <= 30  # of 40 halves; outside by chance once in a thousand
    assert classify.augmented(x, 0, random) is x


def test_smoothed_labels_keep_the_loss_of_a_sure_model_away_from_zero() -> None:
    """Of ten classes and a share of 0.1 the right one is 0.91, the others 0.01 each."""
    loss, label = classify._smoothed(0.1), np.eye(10, dtype=np.float32)[:1]
    wanted = 0.9 * label + 0.01
    entropy = -float((wanted * np.log(wanted)).sum())
    assert float(loss(label, np.log(wanted))) == pytest.approx(entropy, rel=1e-6)
    assert float(loss(label, 20.0 * label)) > 2 * entropy


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_the_trivial_model_of_a_family_knows_something(name: str) -> None:
    """It is better than what a diverged run counts, and not perfect."""
    family = FAMILIES[name]
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    size = family.quick
    value = task.mean(module.trivial(module.load(size, None), size))
    best = {"perplexity": 1.0, "SWD": 0.0, "BLEU": 100.0}.get(family.metric, 1.0)
    low, high = sorted((family.worst, best))
    assert low < value < high
