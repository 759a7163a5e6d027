"""BERT as a masked language model of running text; perplexity of the hidden words.

A sequence is a mark and a stretch of the text, wherever it begins. Which words are
hidden depends on seed and step; on the test text it is the same for all runs.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from convergence import metrics, task
from convergence.data import text
from convergence.families import Size
from models import bert


def load(size: Size, directory: Path | None) -> text.Text:
    return text.load(directory, **size.data)


def make(data: text.Text, size: Size) -> task.Task:
    model = bert.build(vocabulary=len(data.words), **size.model)
    infer, loss, steps = task.inference(model), bert.LOSS(), size.model["steps"]
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    predictions = max(round(steps * 0.2), 1)

    def hidden(words: np.ndarray, random: np.random.Generator) -> task.Batch:
        return bert.mask_tokens(
            words,
            random,
            vocabulary=len(data.words),
            predictions=predictions,
            specials=len(text.SPECIALS),
        )

    def batch(seed: int, step: int) -> task.Batch:
        count = len(data.train) - steps
        starts = task.rows(seed, step, batch=size.batch, count=count)
        return hidden(stretches(data.train, starts, steps), task.noise(seed, step))

    def evaluate() -> float:
        starts = np.arange(0, len(data.test) - steps, steps)
        x, y = hidden(stretches(data.test, starts, steps), task.noise(0, 0))
        return metrics.perplexity(float(loss(y, task.outputs(infer, x, size.batch))))

    return task.supervised(model, loss, optimizer, batch, evaluate)


def stretches(words: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Words from each start on, behind the mark of a sequence, [starts, steps]."""
    found = words[starts[:, None] + np.arange(steps)]
    found[:, 0] = text.SPECIALS.index("<cls>")
    return found
