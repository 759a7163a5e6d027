"""Transformer that translates: encoder and decoder of attention layers.

Vaswani et al., "Attention Is All You Need" (2017): LayerNorm after each sublayer is
added, sinusoids for positions, one table for embeddings and for logits (section 3.4).
No tokenisation and no key-value cache; tokens and beam search are in `sequences`.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from models import sequences

LOSS = functools.partial(sequences.TokenLoss, smoothing=0.1)  # section 5.4


def build(
    *,
    vocabulary: int = 20,
    target_vocabulary: int | None = None,
    steps: int = 8,
    width: int = 32,
    heads: int = 4,
    blocks: int = 2,
    hidden: int = 64,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns (source, target) [batch, steps] to logits [batch, steps, vocabulary].

    The paper's base model is `vocabulary=37_000, width=512, heads=8, blocks=6,
    hidden=2048, dropout=0.1`.

    Args:
      vocabulary: number of tokens of the source.
      target_vocabulary: number of tokens of the target, or None where both languages
        have one vocabulary, and so one table.
      steps: length of sequences.
      width: features per position, a multiple of `heads`.
      heads: attention heads, each `width / heads` wide.
      blocks: blocks of the encoder and of the decoder.
      hidden: units of the feed-forward layers.
      dropout: fraction dropped from embeddings and from what is added; 0 adds none.

    Raises:
      ValueError: a width that the heads do not divide.
    """
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    source = keras.Input((steps,), dtype="int32", name="source")
    target = keras.Input((steps,), dtype="int32", name="target")
    normal = keras.initializers.RandomNormal(stddev=width**-0.5)
    tables = [
        layers.ReversibleEmbedding(
            size, width, embeddings_initializer=normal, name=f"embedding_{side}"
        )
        for side, size in (("target", target_vocabulary or vocabulary),
                           ("source", target_vocabulary and vocabulary))
        if size
    ]  # fmt: skip
    block = functools.partial(_block, sizes=(heads, hidden), dropout=dropout)
    encoder = _encoder(steps, tables[-1], (blocks, dropout), block)
    decoder = _decoder(steps, tables[0], (blocks, dropout), block)
    logits = decoder([target, source, encoder(source)])
    return keras.Model([source, target], logits, name="transformer_nmt")


def example_batch(
    batch: int, seed: int, *, vocabulary: int = 20, steps: int = 8
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns (source, target) and the token after each; see `sequences`."""
    return sequences.example_pairs(
        batch, seed, vocabulary=vocabulary, target_vocabulary=vocabulary, steps=steps
    )


def translate(
    model: keras.Model,
    source: tf.Tensor,
    *,
    width: int = 4,
    steps: int = 20,
    penalty: float = 0.6,
) -> tf.Tensor:
    """The best translation that beam search finds, [batch, steps].

    The whole target is decoded again at each step.

    Raises:
      ValueError: more steps than the model has.
    """
    decoder = model.get_layer("decoder")
    most = model.input[1].shape[1]
    if steps > most:
        raise ValueError(f"{steps} steps; the model has {most}")
    source = tf.convert_to_tensor(source)
    memory = model.get_layer("encoder")(source, training=False)

    def step(tokens: tf.Tensor, state: tuple) -> tuple[tf.Tensor, tuple]:
        target, place, source, memory = state
        target += tokens[:, None] * tf.one_hot(place, most, dtype=tf.int32)
        logits = decoder([target, source, memory], training=False)
        logits = tf.gather(logits, place, batch_dims=1)
        return logits, (target, place + 1, source, memory)

    batch = source.shape[0]
    nothing = tf.zeros([batch, most], tf.int32)
    state = (nothing, tf.zeros([batch], tf.int32), source, memory)
    found, _ = sequences.beam_search(
        step, state, batch=batch, width=width, steps=steps, penalty=penalty
    )
    return found[:, 0]


@keras.saving.register_keras_serializable("models")
class Sinusoids(layers.Layer):
    """Embeddings times the root of their width, plus section 3.5's sinusoids."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        steps, width = x.shape[1:]
        turns = np.arange(steps)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
        table = np.zeros((steps, width), np.float32)
        table[:, 0::2], table[:, 1::2] = np.sin(turns), np.cos(turns)[:, : width // 2]
        return x * width**0.5 + table


def _encoder(steps: int, table: layers.Layer, sizes: tuple, block) -> keras.Model:
    """Source [batch, steps] to memory [batch, steps, width]."""
    blocks, dropout = sizes
    source = keras.Input((steps,), dtype="int32", name="source")
    real = (source != sequences.PAD)[:, None]
    x = _dropped(Sinusoids(name="positions")(table(source)), dropout, "dropout")
    for index in range(blocks):
        x = block(x, None, real, name=f"block{index}")
    return keras.Model(source, x, name="encoder")


def _decoder(steps: int, table: layers.Layer, sizes: tuple, block) -> keras.Model:
    """Target, source and memory to logits [batch, steps, vocabulary]."""
    blocks, dropout = sizes
    target = keras.Input((steps,), dtype="int32", name="target")
    source = keras.Input((steps,), dtype="int32", name="source")
    memory = keras.Input((steps, table.output_dim), name="memory")
    real = (source != sequences.PAD)[:, None]
    x = _dropped(Sinusoids(name="positions")(table(target)), dropout, "dropout")
    for index in range(blocks):
        x = block(x, memory, real, name=f"block{index}")
    return keras.Model([target, source, memory], table(x, reverse=True), name="decoder")


def _block(
    x: keras.KerasTensor,
    memory: keras.KerasTensor | None,
    real: keras.KerasTensor,
    *,
    sizes: tuple[int, int],
    dropout: float,
    name: str,
) -> keras.KerasTensor:
    """Attention to oneself, attention to the memory if there is one, feed-forward.

    The decoder, which has a memory, sees no later position; nobody sees padding of the
    source.
    """
    heads, hidden = sizes
    width = x.shape[-1]
    attention = functools.partial(layers.MultiHeadAttention, heads, width // heads)
    own = {"use_causal_mask": True} if memory is not None else {"attention_mask": real}
    h = attention(name=f"{name}_self")(x, x, **own)
    x = _added(x, h, dropout, f"{name}_self")
    if memory is not None:
        h = attention(name=f"{name}_cross")(x, memory, attention_mask=real)
        x = _added(x, h, dropout, f"{name}_cross")
    h = layers.Dense(hidden, activation="relu", name=f"{name}_in")(x)
    h = layers.Dense(width, name=f"{name}_out")(h)
    return _added(x, h, dropout, f"{name}_feed_forward")


def _added(
    x: keras.KerasTensor, h: keras.KerasTensor, dropout: float, name: str
) -> keras.KerasTensor:
    """LayerNorm(x + Dropout(h)): section 5.4 and section 3.1."""
    x = layers.Add(name=f"{name}_add")([x, _dropped(h, dropout, f"{name}_dropout")])
    return layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm")(x)


def _dropped(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x
