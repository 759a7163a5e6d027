"""Sequences of tokens: the special ones, the loss of translation, and beam search.

Shared by the models that translate. No layers and no vocabulary. Every sequence is
padded with `PAD` to a fixed length; a target ends with `END`, and what the decoder
reads is the target moved by one place, with `START` before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

PAD, START, END = 0, 1, 2
SPECIALS = 3
IMPOSSIBLE = -1e9  # added to a logarithm of a probability
Step = Callable[[tf.Tensor, Any], tuple[tf.Tensor, Any]]


@keras.saving.register_keras_serializable("models")
class TokenLoss(keras.losses.Loss):
    """Cross-entropy in nats, the mean over all tokens that are not `PAD`.

    With smoothing, a target has 1 - smoothing and the rest is spread evenly over the
    vocabulary (Szegedy et al., 2016, section 7).
    """

    def __init__(self, smoothing: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.smoothing = smoothing

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        labels = ops.cast(y_true, "int32")
        real = ops.cast(labels != PAD, y_pred.dtype)
        logs = ops.log_softmax(y_pred)
        right = -ops.sum(ops.one_hot(labels, y_pred.shape[-1]) * logs, -1)
        even = -ops.mean(logs, -1)
        each = (1.0 - self.smoothing) * right + self.smoothing * even
        return ops.sum(each * real) / ops.maximum(ops.sum(real), 1.0)


def example_pairs(
    batch: int, seed: int, *, vocabulary: int, target_vocabulary: int, steps: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns (source, what the decoder reads) and targets, each [batch, steps] int32.

    A target is its source, backwards; sources are from half to all of the steps long.
    """
    random = np.random.default_rng(seed)
    most = min(vocabulary, target_vocabulary)
    source = np.full((batch, steps), PAD, np.int32)
    target = np.full((batch, steps + 1), PAD, np.int32)
    target[:, 0] = START
    for row, length in enumerate(random.integers(steps // 2, steps, batch)):
        words = random.integers(SPECIALS, most, length)
        source[row, :length] = words
        target[row, 1 : length + 1], target[row, length + 1] = words[::-1], END
    return (source, target[:, :-1]), target[:, 1:]


def beam_search(
    step: Step,
    state: Any,
    *,
    batch: int,
    width: int,
    steps: int,
    penalty: float = 0.6,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The sequences that a model finds likeliest, best first.

    At each step the `width` likeliest beginnings are kept, finished ones among them
    unchanged. At the end they are ranked by the logarithm of their probability over
    ((5 + length) / 6)^penalty (Wu et al., "Google's Neural Machine Translation System",
    2016, equation 14); a length counts `END`.

    Args:
      step: from tokens [batch * width] and a state to logits [batch * width,
        vocabulary] and the next state.
      state: tensors whose first axis is `batch`, nested in any way.
      batch: number of sources.
      width: beginnings kept; 1 is greedy search.
      steps: longest sequence, its `END` included.
      penalty: exponent; 0 ranks by probability alone.

    Returns:
      Tokens [batch, width, steps], `PAD` after `END`, and scores [batch, width].
    """
    state = tf.nest.map_structure(lambda x: tf.repeat(x, width, 0), state)
    tokens = tf.fill([batch, width, steps], PAD)
    last = tf.fill([batch, width], START)
    # At first all beams are the same: only one may grow.
    scores = tf.tile([[0.0] + [IMPOSSIBLE] * (width - 1)], [batch, 1])
    for place in range(steps):
        logits, state = step(tf.reshape(last, [-1]), state)
        logs = tf.reshape(tf.nn.log_softmax(logits), [batch, width, -1])
        over = (last == END) | (last == PAD)
        count = logs.shape[-1]
        only_pad = tf.one_hot(PAD, count, 0.0, IMPOSSIBLE)
        never_pad = tf.one_hot([PAD, START], count, IMPOSSIBLE, 0.0)
        logs = tf.where(over[..., None], only_pad, logs + tf.reduce_sum(never_pad, 0))
        total = tf.reshape(scores[..., None] + logs, [batch, -1])
        scores, best = tf.math.top_k(total, width)
        parent, last = best // count, best % count
        state = tf.nest.map_structure(lambda x, p=parent: _chosen(x, p), state)
        tokens = tf.gather(tokens, parent, batch_dims=1)
        tokens = tokens + last[..., None] * tf.one_hot(place, steps, dtype=tf.int32)
    length = tf.reduce_sum(tf.cast(tokens != PAD, tf.float32), -1)
    scores /= ((5.0 + length) / 6.0) ** penalty
    scores, order = tf.math.top_k(scores, width)
    return tf.gather(tokens, order, batch_dims=1), scores


def _chosen(rows: tf.Tensor, parent: tf.Tensor) -> tf.Tensor:
    """Rows [batch * width, ...] of the beams [batch, width] that went on."""
    batch, width = parent.shape
    some = tf.reshape(rows, [batch, width, *rows.shape[1:]])
    return tf.reshape(tf.gather(some, parent, batch_dims=1), tf.shape(rows))
