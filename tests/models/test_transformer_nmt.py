"""Transformer translation: what it sees, how it decodes, that it learns."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import transformer_nmt
from models.sequences import START


def test_it_sees_no_later_token_and_no_padding() -> None:
    model = transformer_nmt.build()
    (source, target), _ = transformer_nmt.example_batch(3, seed=0)
    before = model([source, target]).numpy()
    changed = target.copy()
    changed[:, 5] = 7
    after = model([source, changed]).numpy()
    np.testing.assert_allclose(before[:, :5], after[:, :5], rtol=0, atol=1e-5)
    assert np.abs(before[:, 5:] - after[:, 5:]).max() > 1e-3
    memory = model.get_layer("encoder")(source).numpy()
    decoder = model.get_layer("decoder")
    again = decoder([target, source, np.where(source[..., None] == 0, 9, memory)])
    np.testing.assert_allclose(again, before, rtol=0, atol=1e-5)


def test_weights_are_those_of_the_paper() -> None:
    """Table 3's layers; 44 million without the table for the base model."""
    width, hidden = 512, 2048
    attention = 4 * (width + 1) * width
    feed = (width + 1) * hidden + (hidden + 1) * width
    norm = 2 * width
    block = attention + feed + 2 * norm
    assert round(6 * (2 * block + attention + norm) / 1e6) == 44
    one = transformer_nmt.build(width=width, heads=8, hidden=hidden, blocks=1)
    assert one.count_params() == 2 * block + attention + norm + 20 * width
    two = transformer_nmt.build(target_vocabulary=30)
    table = transformer_nmt.build().count_params()
    assert two.count_params() == table + 30 * 32


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 30 is not a multiple of heads 4"):
        transformer_nmt.build(width=30)


@pytest.mark.thorough
def test_it_learns_to_translate_a_batch() -> None:
    """Fitted to a few sentences, beam search gives them back."""
    model = transformer_nmt.build(blocks=1, dropout=0.01)
    x, y = transformer_nmt.example_batch(4, seed=1)
    optimizer, loss = keras.optimizers.Adam(1e-2), transformer_nmt.LOSS()

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    losses = [float(step()) for _ in range(60)]
    # Smoothing leaves a loss: 0.9 and 0.1 / 20 are the best probabilities.
    assert losses[-1] < 0.5 * losses[0]
    found = transformer_nmt.translate(model, x[0], width=3, steps=8).numpy()
    np.testing.assert_array_equal(found, y)
    assert START not in found
    with pytest.raises(ValueError, match="9 steps; the model has 8"):
        transformer_nmt.translate(model, x[0], steps=9)
