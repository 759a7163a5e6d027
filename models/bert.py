"""BERT's encoder and its masked language model.

Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional
Transformers" (2018): embeddings of token, position and segment, attention to both
sides, LayerNorm after each sublayer, GELU, and a head that names the masked tokens,
whose table is that of the embeddings. Next-sentence prediction is left out; no
tokenisation.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

PAD, MASK = 0, 1  # of text; other tokens are SPECIALS and up
SPECIALS = 2
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1  # appendix A.1
LOSS = functools.partial(
    keras.losses.SparseCategoricalCrossentropy, from_logits=True, ignore_class=PAD
)


def build(
    *,
    vocabulary: int = 100,
    steps: int = 16,
    width: int = 32,
    heads: int = 4,
    blocks: int = 2,
    hidden: int | None = None,
    dropout: float = 0.0,
    scale: float = 0.02,
) -> keras.Model:
    """Returns (tokens, segments, positions) to logits of the tokens at the positions.

    Tokens and segments are [batch, steps], positions [batch, predictions], logits
    [batch, predictions, vocabulary]. BERT-base is `vocabulary=30_522, steps=512,
    width=768, heads=12, blocks=12, dropout=0.1`.

    Args:
      vocabulary: number of tokens.
      steps: length of a sequence.
      width: features per position, a multiple of `heads`.
      heads: attention heads, each `width / heads` wide.
      blocks: number of attention and feed-forward pairs.
      hidden: units of the feed-forward layers, or None for four times the width.
      dropout: fraction dropped; 0 adds no dropout.
      scale: standard deviation of the first weights; a narrow model learns sooner with
        more, in proportion to 1 / sqrt(width).

    Raises:
      ValueError: a width that the heads do not divide.
    """
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    tokens = keras.Input((steps,), dtype="int32", name="tokens")
    segments = keras.Input((steps,), dtype="int32", name="segments")
    positions = keras.Input((None,), dtype="int32", name="positions")
    table = layers.Embedding(
        vocabulary, width, embeddings_initializer=_normal(scale), name="token"
    )
    x = Sum(scale, name="embedding")([table(tokens), segments])
    x = _dropped(_norm("embedding_norm")(x), dropout, "embedding_dropout")
    real = (tokens != PAD)[:, None]
    for index in range(blocks):
        sizes = (heads, hidden or 4 * width)
        x = _block(x, real, sizes, (dropout, scale), f"block{index}")
    x = Pick(name="pick")([x, positions])
    x = _dense(width, scale, "head", "gelu")(x)
    logits = TiedLogits(table, name="logits")(_norm("head_norm")(x))
    return keras.Model([tokens, segments, positions], logits, name="bert")


def example_batch(
    batch: int,
    seed: int,
    *,
    vocabulary: int = 100,
    steps: int = 16,
    predictions: int = 4,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Returns masked text, in which each token is one more than that before it."""
    random = np.random.default_rng(seed)
    start = random.integers(vocabulary - SPECIALS, size=(batch, 1))
    text = SPECIALS + (start + np.arange(steps)) % (vocabulary - SPECIALS)
    return mask_tokens(text, random, vocabulary=vocabulary, predictions=predictions)


def mask_tokens(
    text: np.ndarray,
    random: np.random.Generator,
    *,
    vocabulary: int,
    predictions: int,
    specials: int = SPECIALS,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Chooses tokens to predict, and hides most of them (section 3.1, appendix A.1).

    15 % are chosen; of them 80 % become `MASK`, 10 % another token, 10 % stay.

    Args:
      text: tokens [batch, steps], those below `specials` never chosen.
      random: where choices come from.
      vocabulary: number of tokens.
      predictions: tokens predicted of a sequence at most, and what is returned.
      specials: tokens that are no words.

    Returns:
      Tokens, segments (all 0), positions [batch, predictions], and labels
      [batch, predictions], `PAD` where there was nothing more to choose; all int32.
    """
    words = text >= specials
    order = np.argsort(np.where(words, random.random(text.shape), 2.0), 1)
    positions = order[:, :predictions]
    share = np.maximum(np.round(CHOSEN * words.sum(1)), 1)
    count = np.minimum(words.sum(1), np.minimum(share, predictions))
    real = np.arange(predictions) < count[:, None]
    labels = np.where(real, np.take_along_axis(text, positions, 1), PAD)
    draw = random.random(positions.shape)
    others = random.integers(specials, vocabulary, positions.shape)
    hidden = np.where(
        draw < MASKED, MASK, np.where(draw < MASKED + RANDOM, others, labels)
    )
    old = np.take_along_axis(text, positions, 1)
    tokens = text.copy()
    np.put_along_axis(tokens, positions, np.where(real, hidden, old), 1)
    positions = np.where(real, positions, 0)
    found = (tokens, np.zeros_like(tokens), positions)
    return tuple(x.astype(np.int32) for x in found), labels.astype(np.int32)


@keras.saving.register_keras_serializable("models")
class Sum(layers.Layer):
    """Embeddings of tokens plus those of their positions and their two segments."""

    def __init__(self, scale: float, **options: object) -> None:
        super().__init__(**options)
        self.scale = scale

    def build(self, shapes: list[tuple[int | None, ...]]) -> None:
        _, steps, width = shapes[0]
        for name, rows in (("position", steps), ("segment", 2)):
            table = self.add_weight((rows, width), _normal(self.scale), name=name)
            setattr(self, name, table)

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        x, segments = inputs
        return x + self.position + ops.take(self.segment, segments, axis=0)

    def get_config(self) -> dict[str, object]:
        return super().get_config() | {"scale": self.scale}


@keras.saving.register_keras_serializable("models")
class Pick(layers.Layer):
    """The features [batch, predictions, width] at positions [batch, predictions]."""

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        x, positions = inputs
        return ops.take_along_axis(x, positions[..., None], axis=1)

    def compute_output_shape(self, shapes: list[tuple[int | None, ...]]) -> tuple:
        return (*shapes[1], shapes[0][-1])


@keras.saving.register_keras_serializable("models")
class TiedLogits(layers.Layer):
    """Products with an embedding's rows, and a bias for each row."""

    def __init__(self, table: layers.Embedding, **options: object) -> None:
        super().__init__(**options)
        self.table = table

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.bias = self.add_weight((self.table.input_dim,), "zeros", name="bias")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return ops.matmul(x, ops.transpose(self.table.embeddings)) + self.bias


def _block(
    x: keras.KerasTensor,
    real: keras.KerasTensor,
    sizes: tuple[int, int],
    rates: tuple[float, float],
    name: str,
) -> keras.KerasTensor:
    """Attention to all that is no padding, then feed-forward, each LayerNorm(x + h)."""
    (heads, hidden), (dropout, scale) = sizes, rates
    width = x.shape[-1]
    h = layers.MultiHeadAttention(
        heads,
        width // heads,
        dropout=dropout,
        kernel_initializer=_normal(scale),
        name=f"{name}_attention",
    )(x, x, attention_mask=real)
    h = _dropped(h, dropout, f"{name}_attention_dropout")
    x = layers.Add(name=f"{name}_attention_add")([x, h])
    x = _norm(f"{name}_attention_norm")(x)
    h = _dense(hidden, scale, f"{name}_in", "gelu")(x)
    h = _dropped(_dense(width, scale, f"{name}_out")(h), dropout, f"{name}_dropout")
    return _norm(f"{name}_norm")(layers.Add(name=f"{name}_add")([x, h]))


def _normal(scale: float) -> keras.initializers.Initializer:
    """Of all of the authors' weights; a new one each time, which Keras wants."""
    return keras.initializers.TruncatedNormal(stddev=scale)


def _dense(
    units: int, scale: float, name: str, activation: str | None = None
) -> layers.Dense:
    normal = _normal(scale)
    return layers.Dense(units, activation, kernel_initializer=normal, name=name)


def _norm(name: str) -> layers.LayerNormalization:
    return layers.LayerNormalization(epsilon=1e-12, name=name)  # the authors' code


def _dropped(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x
