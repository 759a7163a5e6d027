"""Recurrent language model: embedding, LSTM or GRU layers, logits over the vocabulary.

The form of Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization"
(2014), as trained on the Penn Treebank: dropout on the non-recurrent connections only,
states carried from one batch to the next where asked. With GRU layers (Cho et al.,
2014) in place of LSTM layers it is the same model. No tokenisation.
"""

from __future__ import annotations

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CELLS = {"lstm": (layers.LSTM, 2), "gru": (layers.GRU, 1)}  # layers and their states
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A configuration of section 4.1, with batches of 20 and gradient descent.

    Attributes:
      units: width of the embedding and of both LSTM layers.
      steps: words of a batch, through which gradients flow.
      dropout: fraction dropped on non-recurrent connections.
      scale: weights start evenly between minus this and this.
      clip: norm at which gradients are clipped, the loss being a sum over the steps.
      epochs: passes over the text; the rate is 1 for `hold` of them, and then is
        divided by `decay` after each.
      hold: see epochs.
      decay: see epochs.
    """

    units: int
    steps: int
    dropout: float
    scale: float
    clip: float
    epochs: int
    hold: int
    decay: float


# "small" is the paper's network without regularisation.
PTB = {
    "small": Settings(200, 20, 0.0, 0.1, 5.0, 13, 4, 2.0),
    "medium": Settings(650, 35, 0.5, 0.05, 5.0, 39, 6, 1.2),
    "large": Settings(1500, 35, 0.65, 0.04, 10.0, 55, 14, 1.15),
}


def build(
    *,
    vocabulary: int = 200,
    units: int = 32,
    layer_count: int = 2,
    steps: int | None = None,
    dropout: float = 0.0,
    cell: str = "lstm",
    scale: float | None = None,
    carry: bool = False,
) -> keras.Model:
    """Returns tokens [batch, steps] to logits [batch, steps, vocabulary].

    The paper's models are those of `PTB` with `vocabulary=10_000`.

    Args:
      vocabulary: number of words.
      units: width of the embedding and of every recurrent layer.
      layer_count: number of recurrent layers.
      steps: length of a sequence, or None for any length.
      dropout: fraction dropped between layers; 0 adds no dropout.
      cell: "lstm" or "gru".
      scale: weights start evenly between minus this and this, or None for Keras' ways.
      carry: whether states are read and returned: [tokens, *states] to [logits,
        *states], which are `initial_states` before the first batch.

    Raises:
      ValueError: another cell.
    """
    if cell not in CELLS:
        raise ValueError(f"cell is {cell!r}; there are {', '.join(CELLS)}")
    kind, state_count = CELLS[cell]
    names = ("kernel", "recurrent", "embeddings")
    start = {f"{name}_initializer": _uniform(scale) for name in names if scale}
    table = start.pop("embeddings_initializer", "uniform")
    tokens = keras.Input((steps,), dtype="int32", name="tokens")
    x = layers.Embedding(vocabulary, units, table, name="embedding")(tokens)
    before, after = [], []
    for index in range(layer_count):
        x = _dropped(x, dropout, f"dropout_{index}")
        name = f"{cell}_{index}"
        layer = kind(
            units, return_sequences=True, return_state=carry, name=name, **start
        )
        if carry:
            own = [keras.Input((units,)) for _ in range(state_count)]
            x, *later = layer(x, initial_state=own)
            before, after = before + own, after + later
        else:
            x = layer(x)
    x = _dropped(x, dropout, "dropout_out")
    start.pop("recurrent_initializer", None)
    logits = layers.Dense(vocabulary, name="logits", **start)(x)
    name = f"{cell}_lm"
    if carry:
        return keras.Model([tokens, *before], [logits, *after], name=name)
    return keras.Model(tokens, logits, name=name)


def initial_states(model: keras.Model, batch: int) -> list[tf.Tensor]:
    """The states [batch, units] before any text of a model that carries them."""
    return [tf.zeros([batch, x.shape[1]]) for x in model.inputs[1:]]


def example_batch(
    batch: int, seed: int, *, vocabulary: int = 200, steps: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [batch, steps] and the token after each, both int32."""
    random = np.random.default_rng(seed)
    text = random.integers(vocabulary, size=(batch, steps + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


def _dropped(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x


def _uniform(scale: float) -> keras.initializers.Initializer:
    return keras.initializers.RandomUniform(-scale, scale)
