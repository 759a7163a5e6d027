"""Decoder-only Transformer language model with causal attention and pre-norm blocks.

Vaswani et al., "Attention Is All You Need" (2017), in the decoder-only form of Radford
et al. (2019): LayerNorm before each sublayer and once after the last block, learned
positions. No tokenisation, no sampling, no key-value cache.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers, ops

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def build(
    *,
    vocabulary: int = 200,
    steps: int = 16,
    width: int = 32,
    heads: int = 4,
    blocks: int = 2,
    activation: str = "gelu",
) -> keras.Model:
    """Returns tokens [batch, steps] to logits [batch, steps, vocabulary].

    Args:
      vocabulary: number of tokens.
      steps: length of a sequence.
      width: features per position, a multiple of `heads`.
      heads: attention heads, each `width / heads` wide.
      blocks: number of attention and feed-forward pairs.
      activation: of the feed-forward layers, "gelu" or "relu".

    Raises:
      ValueError: a width that the heads do not divide.
    """
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    tokens = keras.Input((steps,), dtype="int32", name="tokens")
    x = layers.Embedding(vocabulary, width, name="embedding")(tokens)
    x = Positions(name="positions")(x)
    for index in range(blocks):
        x = _attention(x, heads, f"block{index}_attention")
        x = _feed_forward(x, activation, f"block{index}_feed_forward")
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    logits = layers.Dense(vocabulary, use_bias=False, name="logits")(x)
    return keras.Model(tokens, logits, name="transformer")


def example_batch(
    batch: int, seed: int, *, vocabulary: int = 200, steps: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [batch, steps] and the token after each, both int32."""
    random = np.random.default_rng(seed)
    text = random.integers(vocabulary, size=(batch, steps + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


@keras.saving.register_keras_serializable("models")
class Positions(layers.Layer):
    """Adds a learned vector per position: [batch, steps, width] to the same shape."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(
            shape=input_shape[1:],
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="table",
        )

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return ops.add(x, self.table)


def _attention(x: keras.KerasTensor, heads: int, name: str) -> keras.KerasTensor:
    """x + causal self-attention of LayerNorm(x)."""
    h = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm")(x)
    attention = layers.MultiHeadAttention(heads, x.shape[-1] // heads, name=name)
    h = attention(h, h, use_causal_mask=True)
    return layers.Add(name=f"{name}_add")([x, h])


def _feed_forward(
    x: keras.KerasTensor, activation: str, name: str
) -> keras.KerasTensor:
    """x + two dense layers, four times as wide between them, of LayerNorm(x)."""
    width = x.shape[-1]
    h = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm")(x)
    h = layers.Dense(4 * width, activation=activation, name=f"{name}_in")(h)
    h = layers.Dense(width, name=f"{name}_out")(h)
    return layers.Add(name=f"{name}_add")([x, h])
