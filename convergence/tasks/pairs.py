"""Translation, by LSTM or by Transformer: what both share; BLEU.

Pairs are read in random order; sentences are padded to one length. Hypotheses come
from beam search over all test sentences.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from convergence import metrics, task
from convergence.data import pairs
from convergence.families import Size
from convergence.trivial import words

BEAM = 4


def load(size: Size, directory: Path | None) -> pairs.Pairs:
    return pairs.load(directory, **size.data)


def trivial(data: pairs.Pairs, size: Size) -> float:
    """BLEU of a translation subword by subword."""
    source, target, test = (
        np.where(rows == pairs.END, pairs.PAD, rows)
        for rows in (data.source, data.target, data.test_source)
    )
    table = words.lexicon(source, target, data.vocabulary, pairs.PAD)
    found = words.translated(test, table)
    return metrics.bleu([data.text(row) for row in found], data.references)


def make(
    data: pairs.Pairs, size: Size, module: ModuleType, model: keras.Model
) -> task.Task:
    """The task of a model and of its module, which has `LOSS` and `translate`."""
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.Adam(rate, beta_2=0.98, global_clipnorm=5.0)
    steps = data.source.shape[1]

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(data.source))
        target = data.target[chosen]
        return (data.source[chosen], shifted(target)), target

    @tf.function(autograph=False)
    def translate(source: tf.Tensor) -> Any:
        return module.translate(model, source, width=BEAM, steps=steps)

    def evaluate() -> float:
        found = task.outputs(translate, (data.test_source,), 100)
        return metrics.bleu([data.text(row) for row in found], data.references)

    return task.supervised(model, module.LOSS(), optimizer, batch, evaluate)


def shifted(target: np.ndarray) -> np.ndarray:
    """What the decoder reads: the target moved by one place, with START before it."""
    moved = np.roll(target, 1, axis=1)
    moved[:, 0] = pairs.START
    return np.where(moved == pairs.END, pairs.PAD, moved)
