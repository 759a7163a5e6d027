"""Attention encoder-decoder of LSTM layers: the "small NMT".

Luong, Pham and Manning, "Effective Approaches to Attention-based Neural Machine
Translation" (2015): global attention with the general score (section 3.1) and input
feeding (section 3.3), or with Bahdanau, Cho and Bengio's additive score (2014). The
first layer of the encoder reads both ways, as Bahdanau's does. No tokenisation; tokens
and beam search are in `sequences`.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from models import sequences

LOSS = sequences.TokenLoss
State = tuple[tf.Tensor, ...]
ATTENTIONS = ("luong", "bahdanau")


def build(
    *,
    vocabulary: int = 20,
    target_vocabulary: int = 20,
    units: int = 32,
    layer_count: int = 2,
    dropout: float = 0.0,
    attention: str = "luong",
    steps: int | None = None,
) -> keras.Model:
    """Returns (source, target) [batch, steps] to logits [batch, steps, vocabulary].

    The small model of the TensorFlow NMT tutorial is `units=512, layer_count=2,
    dropout=0.2`; Luong's is `units=1000, layer_count=4`.

    Args:
      vocabulary: number of tokens of the source.
      target_vocabulary: number of tokens of the target.
      units: width of embeddings and of every LSTM layer.
      layer_count: LSTM layers of the encoder and of the decoder.
      dropout: fraction dropped of what enters and what leaves LSTM layers, not of what
        recurs; 0 adds no dropout.
      attention: "luong" or "bahdanau".
      steps: length of sequences, or None for any length.

    Raises:
      ValueError: another attention, or units that two directions cannot halve.
    """
    if attention not in ATTENTIONS:
        raise ValueError(
            f"attention is {attention!r}; there are {', '.join(ATTENTIONS)}"
        )
    if units % 2:
        raise ValueError(f"units are {units}; both directions need the same number")
    source = keras.Input((steps,), dtype="int32", name="source")
    target = keras.Input((steps,), dtype="int32", name="target")
    found = _encoder(vocabulary, (units, layer_count), dropout)(source)
    decoder = Decoder(
        target_vocabulary, units, layer_count, dropout, attention, name="decoder"
    )
    return keras.Model([source, target], decoder([target, source, *found]), name="nmt")


def example_batch(
    batch: int,
    seed: int,
    *,
    vocabulary: int = 20,
    target_vocabulary: int = 20,
    steps: int = 8,
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns (source, target) and the token after each; see `sequences`."""
    return sequences.example_pairs(
        batch,
        seed,
        vocabulary=vocabulary,
        target_vocabulary=target_vocabulary,
        steps=steps,
    )


def translate(
    model: keras.Model,
    source: tf.Tensor,
    *,
    width: int = 4,
    steps: int = 20,
    penalty: float = 0.6,
) -> tf.Tensor:
    """The best translation that beam search finds, [batch, steps]."""
    decoder = model.get_layer("decoder")
    source = tf.convert_to_tensor(source)
    memory, *states = model.get_layer("encoder")(source, training=False)
    found, _ = sequences.beam_search(
        decoder.step,
        decoder.begin(memory, tf.not_equal(source, sequences.PAD), states),
        batch=source.shape[0],
        width=width,
        steps=steps,
        penalty=penalty,
    )
    return found[:, 0]


@keras.saving.register_keras_serializable("models")
class Decoder(layers.Layer):
    """LSTM layers that attend to the encoder's memory, one token after the other.

    A state is memory [batch, source, units], its scores' keys, which of it is real,
    the last attentional vector [batch, units], and each LSTM layer's two states.
    """

    def __init__(
        self,
        vocabulary: int,
        units: int,
        layer_count: int,
        dropout: float,
        attention: str,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.embedding = layers.Embedding(vocabulary, units, name="embedding")
        self.cells = [
            layers.LSTMCell(units, name=f"lstm_{index}") for index in range(layer_count)
        ]
        self.drop = layers.Dropout(dropout, name="dropout")
        dense = functools.partial(layers.Dense, units, use_bias=False)
        self.keys = dense(name="keys")
        self.query = dense(name="query") if attention == "bahdanau" else None
        self.score = layers.Dense(1, use_bias=False, name="score")
        self.combine = dense(activation="tanh", name="combine")
        self.logits = layers.Dense(vocabulary, name="logits")
        self.units = units
        self.supports_masking = True  # the encoder's mask is read from the source

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Nothing is masked further on: the loss leaves out padding by itself."""

    def build(self, shapes: list[tuple[int | None, ...]]) -> None:
        units = self.units
        self.embedding.build(shapes[0])
        for index, cell in enumerate(self.cells):
            cell.build((None, 2 * units if index == 0 else units))
        self.keys.build((None, None, units))
        if self.query is not None:
            self.query.build((None, units))
            self.score.build((None, None, units))
        self.combine.build((None, 2 * units))
        self.logits.build((None, None, units))

    def compute_output_shape(self, shapes: list[tuple[int | None, ...]]) -> tuple:
        return (*shapes[0], self.logits.units)

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        """Logits [batch, steps, vocabulary] after each token of a known target."""
        tokens, source, memory, *states = inputs
        state = self.begin(memory, tf.not_equal(source, sequences.PAD), states)
        constant, moving = state[:3], state[3:]
        words = tf.transpose(self.embedding(tokens), [1, 0, 2])
        words = self.drop(words, training=training)
        masks = tf.ones_like(words)[:, None] * tf.ones([len(self.cells), 1, 1])
        masks = self.drop(masks, training=training)
        found = tf.scan(
            lambda before, x: self._advance(x[0], (*constant, *before), x[1])[3:],
            (words, masks),
            moving,
        )
        return self.logits(tf.transpose(found[0], [1, 0, 2]))

    def begin(
        self, memory: tf.Tensor, real: tf.Tensor, states: list[tf.Tensor]
    ) -> State:
        """The state before the first token."""
        nothing = tf.zeros_like(memory[:, 0])
        return (memory, self.keys(memory), real, nothing, *states)

    def step(self, tokens: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """Logits [batch, vocabulary] after tokens [batch], and the next state."""
        state = self._advance(self.embedding(tokens), state, None)
        return self.logits(state[3]), state

    def _advance(self, word: tf.Tensor, state: State, masks: tf.Tensor | None) -> State:
        """Equations 1 to 8; input feeding puts the last result beside the word."""
        memory, keys, real, fed, *states = state
        x, after = tf.concat([word, fed], -1), []
        for index, cell in enumerate(self.cells):
            x, own = cell(x, states[2 * index : 2 * index + 2])
            x = x if masks is None else x * masks[index]
            after += own
        context = self._attend(x, memory, keys, real)
        fed = self.combine(tf.concat([context, x], -1))
        return (memory, keys, real, fed, *after)

    def _attend(
        self, x: tf.Tensor, memory: tf.Tensor, keys: tf.Tensor, real: tf.Tensor
    ) -> tf.Tensor:
        """The mean of the memory [batch, units], weighted by how it scores."""
        if self.query is None:
            scores = tf.einsum("bsu,bu->bs", keys, x)
        else:
            scores = self.score(tf.tanh(keys + self.query(x)[:, None]))[..., 0]
        weights = tf.nn.softmax(tf.where(real, scores, sequences.IMPOSSIBLE))
        return tf.einsum("bs,bsu->bu", weights, memory)


def _encoder(vocabulary: int, sizes: tuple[int, int], dropout: float) -> keras.Model:
    """Source [batch, steps] to memory [batch, steps, units] and each layer's states."""
    units, layer_count = sizes
    source = keras.Input((None,), dtype="int32", name="source")
    real = source != sequences.PAD
    x = layers.Embedding(vocabulary, units, name="embedding")(source)
    states = []
    for index in range(layer_count):
        x = layers.Dropout(dropout, name=f"dropout_{index}")(x) if dropout else x
        options = {"return_sequences": True, "return_state": True}
        if index == 0:
            both = layers.LSTM(units // 2, **options)
            both = layers.Bidirectional(both, name="lstm_0")
            x, h, c, back_h, back_c = both(x, mask=real)
            join = layers.Concatenate
            states += [join(name="h_0")([h, back_h]), join(name="c_0")([c, back_c])]
        else:
            x, h, c = layers.LSTM(units, name=f"lstm_{index}", **options)(x, mask=real)
            states += [h, c]
    return keras.Model(source, [x, *states], name="encoder")
