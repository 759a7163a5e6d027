"""Wide & Deep: a linear model of crossed features beside a network of embeddings.

Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016), sections 3 and 4:
both parts end in one logit and are trained together. Ids arrive hashed into one range,
which is one table; no feature transformation is here.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers, ops

LOSS = functools.partial(keras.losses.BinaryCrossentropy, from_logits=True)


def build(
    *,
    rows: int = 1000,
    width: int = 8,
    fields: int = 6,
    numbers: int = 4,
    hidden: tuple[int, ...] = (32, 16),
) -> keras.Model:
    """Returns (ids [batch, fields], numbers [batch, numbers]) to a logit [batch, 1].

    The paper's deep part is `width=32, hidden=(1024, 512, 256)`.

    Args:
      rows: rows of the embedding table: ids there are, over all fields.
      width: length of an embedding.
      fields: categorical features of an example.
      numbers: continuous features of an example.
      hidden: units of each hidden layer of the deep part.
    """
    ids = keras.Input((fields,), dtype="int32", name="ids")
    values = keras.Input((numbers,), name="numbers")
    weights = layers.Embedding(rows, 1, embeddings_initializer="zeros", name="wide")
    wide = ops.sum(weights(ids), axis=1)
    x = layers.Flatten(name="flat")(layers.Embedding(rows, width, name="table")(ids))
    x = layers.Concatenate(name="features")([x, values])
    for index, units in enumerate(hidden):
        x = layers.Dense(units, activation="relu", name=f"hidden_{index}")(x)
    deep = layers.Dense(1, name="deep")(x)
    logit = layers.Add(name="logit")([wide, deep])
    return keras.Model([ids, values], logit, name="wide_deep")


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
