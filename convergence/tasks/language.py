"""An LSTM language model of running text; perplexity.

The text is cut into as many streams as a batch has rows. Each stream is read from its
beginning to its end, and then again; where it begins depends on the seed.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from convergence import metrics, task
from convergence.data import text
from convergence.families import Size
from models import lstm_lm


def load(size: Size, directory: Path | None) -> text.Text:
    return text.load(directory, **size.data)


def make(data: text.Text, size: Size) -> task.Task:
    sizes = dict(size.model)
    steps = sizes.pop("steps")
    model = lstm_lm.build(vocabulary=len(data.words), **sizes)
    infer = task.inference(model)
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=5.0)

    def batch(seed: int, step: int) -> task.Batch:
        return window(_turned(data.train, seed), step, rows=size.batch, steps=steps)

    def evaluate() -> float:
        count = (len(data.test) - 1) // (size.batch * steps)
        losses = []
        loss = lstm_lm.LOSS()
        for step in range(count):
            x, y = window(data.test, step, rows=size.batch, steps=steps)
            losses.append(float(loss(y, task.outputs(infer, (x,), size.batch))))
        return metrics.perplexity(float(np.mean(losses)))

    return task.supervised(model, lstm_lm.LOSS(), optimizer, batch, evaluate)


def window(
    words: np.ndarray, step: int, *, rows: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The words of a step, [rows, steps], and the word after each.

    Args:
      words: running text, [words].
      step: which window of the streams; after the last one comes the first.
      rows: streams.
      steps: words of a window.
    """
    length = (len(words) - 1) // rows
    start = step % (length // steps) * steps
    places = np.arange(rows)[:, None] * length + start + np.arange(steps)
    return words[places], words[places + 1]


def _turned(words: np.ndarray, seed: int) -> np.ndarray:
    return np.roll(words, -int(task.noise(seed, 0).integers(len(words))))
