"""LSTM language model: embedding, LSTM layers, logits over the vocabulary.

The form of Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization"
(2014), as trained on the Penn Treebank: dropout on the non-recurrent connections only.
No tokenisation and no state carried from one batch to the next.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def build(
    *,
    vocabulary: int = 200,
    units: int = 32,
    layer_count: int = 2,
    steps: int | None = None,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns tokens [batch, steps] to logits [batch, steps, vocabulary].

    The paper's medium model is `vocabulary=10_000, units=650, steps=35, dropout=0.5`.

    Args:
      vocabulary: number of words.
      units: width of the embedding and of every LSTM layer.
      layer_count: number of LSTM layers.
      steps: length of a sequence, or None for any length.
      dropout: fraction dropped between layers; 0 adds no dropout.
    """
    tokens = keras.Input((steps,), dtype="int32", name="tokens")
    x = layers.Embedding(vocabulary, units, name="embedding")(tokens)
    for index in range(layer_count):
        x = _dropped(x, dropout, f"dropout_{index}")
        x = layers.LSTM(units, return_sequences=True, name=f"lstm_{index}")(x)
    x = _dropped(x, dropout, "dropout_out")
    logits = layers.Dense(vocabulary, name="logits")(x)
    return keras.Model(tokens, logits, name="lstm_lm")


def example_batch(
    batch: int, seed: int, *, vocabulary: int = 200, steps: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [batch, steps] and the token after each, both int32."""
    random = np.random.default_rng(seed)
    text = random.integers(vocabulary, size=(batch, steps + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


def _dropped(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x
