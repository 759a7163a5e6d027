"""Wide & Deep: a linear model of crossed features beside a network of embeddings.

Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016), sections 3 and 4:
both parts end in one logit and are trained together, the wide one on crossed features
too. Ids arrive hashed into one range, which is one table; no other feature
transformation is here.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

# Odd, and far from powers of two: 2^64 over the golden ratio, as Knuth's hashing has.
MIX = -7046029254386353131
LOSS = functools.partial(keras.losses.BinaryCrossentropy, from_logits=True)


def build(
    *,
    rows: int = 1000,
    width: int = 8,
    fields: int = 6,
    numbers: int = 4,
    hidden: tuple[int, ...] = (32, 16),
    crosses: tuple[tuple[int, ...], ...] = (),
    cross_rows: int = 1000,
) -> keras.Model:
    """Returns (ids [batch, fields], numbers [batch, numbers]) to a logit [batch, 1].

    The paper's deep part is `width=32, hidden=(1024, 512, 256)`.

    Args:
      rows: rows of the embedding table: ids there are, over all fields.
      width: length of an embedding.
      fields: categorical features of an example.
      numbers: continuous features of an example.
      hidden: units of each hidden layer of the deep part.
      crosses: fields, by position, whose ids together are a feature of the wide part.
      cross_rows: weights into which all crossed features are hashed.
    """
    ids = keras.Input((fields,), dtype="int32", name="ids")
    values = keras.Input((numbers,), name="numbers")
    zeros = {"output_dim": 1, "embeddings_initializer": "zeros"}
    wide = ops.sum(layers.Embedding(rows, name="wide", **zeros)(ids), axis=1)
    if crosses:
        crossed = Cross(crosses, cross_rows, name="cross")(ids)
        weights = layers.Embedding(cross_rows, name="wide_crossed", **zeros)(crossed)
        wide = layers.Add(name="wide_sum")([wide, ops.sum(weights, axis=1)])
    x = layers.Flatten(name="flat")(layers.Embedding(rows, width, name="table")(ids))
    x = layers.Concatenate(name="features")([x, values])
    for index, units in enumerate(hidden):
        x = layers.Dense(units, activation="relu", name=f"hidden_{index}")(x)
    deep = layers.Dense(1, name="deep")(x)
    logit = layers.Add(name="logit")([wide, deep])
    return keras.Model([ids, values], logit, name="wide_deep")


def wide_variables(model: keras.Model) -> list[keras.Variable]:
    """The linear part, which the paper trains with FTRL and L1 regularisation."""
    return [v for v in model.trainable_variables if v.path.startswith("wide")]


def deep_variables(model: keras.Model) -> list[keras.Variable]:
    """The network, its embeddings included, which the paper trains with AdaGrad."""
    return [v for v in model.trainable_variables if not v.path.startswith("wide")]


@keras.saving.register_keras_serializable("models")
class Cross(layers.Layer):
    """Ids [batch, fields] to a row of 0 to `rows` - 1 for each cross, by hashing.

    Section 3.1's cross-product: an example has the feature of exactly those ids.
    """

    def __init__(
        self, crosses: tuple[tuple[int, ...], ...], rows: int, **options: object
    ) -> None:
        super().__init__(**options)
        self.crosses, self.rows = tuple(map(tuple, crosses)), rows

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        ids = tf.cast(ids, tf.int64)
        found = []
        for index, fields in enumerate(self.crosses):
            # Crosses of the same fields in another place differ in where they start;
            # products overflow as they like.
            row = tf.fill(tf.shape(ids)[:1], tf.constant(index, tf.int64))
            for field in fields:
                row = (row + ids[:, field] + 1) * MIX
                row = tf.bitwise.bitwise_xor(row, tf.bitwise.right_shift(row, 32))
            found.append(tf.math.floormod(row, self.rows))
        return tf.cast(tf.stack(found, 1), tf.int32)

    def compute_output_spec(self, ids: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((ids.shape[0], len(self.crosses)), "int32")

    def get_config(self) -> dict[str, object]:
        own = {"crosses": self.crosses, "rows": self.rows}
        return {**super().get_config(), **own}


def example_batch(
    batch: int, seed: int, *, rows: int = 1000, fields: int = 6, numbers: int = 4
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns (ids int32, numbers float32) and labels [batch, 1], 0 or 1 (float32).

    Each field has its own equal share of the rows.
    """
    random = np.random.default_rng(seed)
    share = rows // fields
    ids = random.integers(share, size=(batch, fields)) + share * np.arange(fields)
    values = random.standard_normal((batch, numbers), dtype=np.float32)
    labels = (values.mean(axis=1, keepdims=True) > 0).astype(np.float32)
    return (ids.astype(np.int32), values), labels
