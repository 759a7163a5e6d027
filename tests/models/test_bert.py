"""BERT: weights of the paper, masking by count, what it sees, that it learns."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from batches import losses

from models import bert


def test_weights_are_those_of_the_paper() -> None:
    """110 million in BERT-base (section 3), counted as built at one block."""
    width, words, steps, blocks = 768, 30_522, 512, 12
    embeddings = (words + steps + 2 + 2) * width
    block = 4 * (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width
    block += 4 * width
    head = (width + 1) * width + 2 * width + words
    pooler = (width + 1) * width  # of next-sentence prediction
    assert round((embeddings + blocks * block + pooler) / 1e6) == 109
    one = bert.build(vocabulary=words, steps=steps, width=width, heads=12, blocks=1)
    assert one.count_params() == embeddings + block + head


def test_masking_chooses_and_hides_as_the_paper_says() -> None:
    """15 % chosen, 80 % of them masked, 10 % changed, 10 % kept."""
    random = np.random.default_rng(0)
    text = random.integers(2, 1000, (500, 100))
    text[:, 80:] = bert.PAD
    (tokens, segments, positions), labels = bert.mask_tokens(
        text, random, vocabulary=1000, predictions=20
    )
    assert (np.count_nonzero(labels, 1) == 12).all()  # 15 % of 80
    assert not segments.any()
    real = labels != bert.PAD
    rows = np.nonzero(real)[0]
    places = positions[real]
    np.testing.assert_array_equal(text[rows, places], labels[real])
    assert len(set(zip(rows, places, strict=True))) == 500 * 12
    untouched = np.ones_like(text, bool)
    untouched[rows, places] = False
    np.testing.assert_array_equal(tokens[untouched], text[untouched])
    shown = tokens[rows, places]
    # 6000 draws: five standard deviations are 0.026 and 0.019.
    assert np.mean(shown == bert.MASK) == pytest.approx(0.8, abs=0.026)
    assert np.mean(shown == labels[real]) == pytest.approx(0.1, abs=0.02)


def test_a_sequence_without_words_predicts_nothing() -> None:
    (tokens, _, positions), labels = bert.mask_tokens(
        np.zeros((2, 5), int), np.random.default_rng(0), vocabulary=9, predictions=3
    )
    assert not tokens.any()
    assert not positions.any()
    assert not labels.any()
    logits = np.ones((2, 3, 9), np.float32)
    assert float(bert.LOSS()(labels, logits)) == 0.0


def test_it_sees_both_sides_and_no_padding() -> None:
    model = bert.build()
    tokens = np.full((2, 16), 5)
    tokens[:, 12:] = bert.PAD
    tokens[1, 0], tokens[1, 11] = 6, 7
    segments, positions = np.zeros_like(tokens), np.array([[5], [5]])
    found = model([tokens, segments, positions]).numpy()
    assert np.abs(found[0] - found[1]).max() > 1e-4
    table = model.get_layer("token")
    weights = table.get_weights()[0]
    weights[bert.PAD] += 3
    table.set_weights([weights])
    again = model([tokens, segments, positions]).numpy()
    np.testing.assert_allclose(again[..., 2:], found[..., 2:], rtol=0, atol=1e-6)


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 30 is not a multiple of heads 4"):
        bert.build(width=30)


def test_first_weights_have_the_scale_that_is_asked_for() -> None:
    model = bert.build(width=32, steps=64, scale=0.1)
    drawn = [v.numpy() for v in model.weights if v.numpy().any() and v.ndim > 1]
    assert len(drawn) > 10
    # A normal cut off at two deviations has 0.88 of its deviation left.
    for values in drawn:
        assert np.abs(values).max() <= 0.2
        assert values.std() == pytest.approx(0.088, abs=5 * 0.1 / np.sqrt(values.size))


def test_it_learns_a_batch() -> None:
    model = bert.build(blocks=1)
    model.compile(keras.optimizers.Adam(5e-3), bert.LOSS(), jit_compile=False)
    found = losses(model, bert.example_batch(16, seed=0), steps=25)
    # Of logits with a deviation of s it is s**2 / 2 more than of equal ones: s < 1.
    assert found[0] == pytest.approx(np.log(100), abs=0.5)
    assert found[-1] < 0.5 * found[0]
