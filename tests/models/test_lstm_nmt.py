"""LSTM translation: its parts agree with each other, and it learns to translate."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import lstm_nmt
from models.sequences import END, START


@pytest.mark.parametrize("attention", lstm_nmt.ATTENTIONS)
def test_decoding_step_by_step_is_decoding_at_once(attention: str) -> None:
    """`step`, which beam search uses, and the scan, which training uses."""
    model = lstm_nmt.build(units=8, attention=attention)
    (source, target), _ = lstm_nmt.example_batch(3, seed=0)
    at_once = model([source, target]).numpy()
    decoder = model.get_layer("decoder")
    memory, *states = model.get_layer("encoder")(source)
    state = decoder.begin(memory, tf.constant(source != 0), states)
    for place in range(target.shape[1]):
        logits, state = decoder.step(tf.constant(target[:, place]), state)
        # The same sums of at most 16 products below 1, in another order.
        np.testing.assert_allclose(logits, at_once[:, place], rtol=0, atol=1e-5)


def test_padding_of_the_source_changes_nothing() -> None:
    model = lstm_nmt.build(units=8)
    (source, target), _ = lstm_nmt.example_batch(3, seed=0)
    longer = np.pad(source, [(0, 0), (0, 5)])
    np.testing.assert_allclose(
        model([source, target]), model([longer, target]), rtol=0, atol=1e-6
    )


def test_weights_are_those_of_the_layers() -> None:
    """An LSTM layer has 4 * units * (inputs + units + 1)."""
    units, words = 8, 20
    lstm = {n: 4 * units * (n + units + 1) for n in (units, 2 * units)}
    both = 2 * 4 * units // 2 * (units + units // 2 + 1)
    wanted = words * units + both + lstm[units]
    wanted += words * units + lstm[2 * units] + lstm[units]
    wanted += units * units + 2 * units * units + (units + 1) * words
    assert lstm_nmt.build(units=units).count_params() == wanted


def test_other_attention_and_odd_units_are_refused() -> None:
    with pytest.raises(ValueError, match="attention is 'dot'; there are luong, bahd"):
        lstm_nmt.build(attention="dot")
    with pytest.raises(ValueError, match="units are 7"):
        lstm_nmt.build(units=7)


@pytest.mark.thorough
def test_it_learns_to_translate_a_batch() -> None:
    """Fitted to a few sentences, beam search gives them back."""
    model = lstm_nmt.build(units=32, layer_count=1, dropout=0.01)
    x, y = lstm_nmt.example_batch(4, seed=1, steps=5)
    optimizer, loss = keras.optimizers.Adam(2e-2), lstm_nmt.LOSS()

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    losses = [float(step()) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    found = lstm_nmt.translate(model, x[0], width=3, steps=5).numpy()
    np.testing.assert_array_equal(found, y)
    assert START not in found
    assert (found == END).any(1).all()
