"""LSTM language model: the paper's sizes, and states that go on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import lstm_lm


@pytest.mark.thorough
def test_has_the_weights_of_the_paper() -> None:
    sizes = {"vocabulary": 10_000, "steps": 35}
    medium = lstm_lm.build(units=650, **sizes).count_params()
    large = lstm_lm.build(units=1500, **sizes).count_params()
    # Zaremba et al., section 4.1: about 20 and 66 million.
    assert (round(medium / 1e6), round(large / 1e6)) == (20, 66)


def test_settings_are_those_of_the_paper() -> None:
    """Section 4.1; the rate of the last epoch follows from the others."""
    last = {
        name: one.decay ** -(one.epochs - one.hold) for name, one in lstm_lm.PTB.items()
    }
    assert {name: one.units for name, one in lstm_lm.PTB.items()} == {
        "small": 200, "medium": 650, "large": 1500,
    }  # fmt: skip
    assert all(1e-3 < rate < 4e-3 for rate in last.values())


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_carries_states_as_if_the_text_were_whole(cell: str) -> None:
    sizes = {"cell": cell, "units": 8, "scale": 0.1}
    keras.utils.set_random_seed(0)
    whole = lstm_lm.build(**sizes)
    parts = lstm_lm.build(carry=True, **sizes)
    parts.set_weights(whole.get_weights())
    tables = [w for w in whole.get_weights() if w.ndim == 2 and w.any()]
    assert all(0.09 < np.abs(w).max() <= 0.1 for w in tables)
    text, _ = lstm_lm.example_batch(3, seed=0)
    first, *states = parts(
        [tf.constant(text[:, :5]), *lstm_lm.initial_states(parts, 3)]
    )
    second, *_ = parts([tf.constant(text[:, 5:]), *states])
    joined = np.concatenate([first, second], 1)
    np.testing.assert_allclose(joined, whole(text), rtol=0, atol=1e-6)


def test_takes_gru_layers_and_refuses_other_cells() -> None:
    model = lstm_lm.build(cell="gru", units=8)
    assert sum(isinstance(layer, keras.layers.GRU) for layer in model.layers) == 2
    with pytest.raises(ValueError, match="cell is 'rnn'; there are lstm, gru"):
        lstm_lm.build(cell="rnn")
