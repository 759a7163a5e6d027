"""Recurrent language model: embedding, LSTM or GRU layers, logits over the vocabulary.

The form of Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization"
(2014), as trained on the Penn Treebank: dropout on the non-recurrent connections only.
With GRU layers (Cho et al., 2014) in place of LSTM layers it is the same model.
No tokenisation and no state carried from one batch to the next.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

CELLS = {"lstm": layers.LSTM, "gru": layers.GRU}
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def build(
    *,
    vocabulary: int = 200,
    units: int = 32,
    layer_count: int = 2,
    steps: int | None = None,
    dropout: float = 0.0,
    cell: str = "lstm",
) -> keras.Model:
    """Returns tokens [batch, steps] to logits [batch, steps, vocabulary].

    The paper's medium model is `vocabulary=10_000, units=650, steps=35, dropout=0.5`,
    its large one `units=1500` with `dropout=0.65`.

    Args:
      vocabulary: number of words.
      units: width of the embedding and of every recurrent layer.
      layer_count: number of recurrent layers.
      steps: length of a sequence, or None for any length.
      dropout: fraction dropped between layers; 0 adds no dropout.
      cell: "lstm" or "gru".

    Raises:
      ValueError: another cell.
    """
    if cell not in CELLS:
        raise ValueError(f"cell is {cell!r}; there are {', '.join(CELLS)}")
    tokens = keras.Input((steps,), dtype="int32", name="tokens")
    x = layers.Embedding(vocabulary, units, name="embedding")(tokens)
    for index in range(layer_count):
        x = _dropped(x, dropout, f"dropout_{index}")
        x = CELLS[cell](units, return_sequences=True, name=f"{cell}_{index}")(x)
    x = _dropped(x, dropout, "dropout_out")
    logits = layers.Dense(vocabulary, name="logits")(x)
    return keras.Model(tokens, logits, name=f"{cell}_lm")


def example_batch(
    batch: int, seed: int, *, vocabulary: int = 200, steps: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [batch, steps] and the token after each, both int32."""
    random = np.random.default_rng(seed)
    text = random.integers(vocabulary, size=(batch, steps + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


def _dropped(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x
