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
from convergence.trivial import kneser_ney
from models import bert


def load(size: Size, directory: Path | None) -> text.Text:
    return text.load(directory, **size.data)


def trivial(data: text.Text, size: Size) -> float:
    """Perplexity of a Kneser-Ney trigram that sees what the model sees before a word.

    Where the word that is asked for is not masked, Bayes' rule says how likely what
    stands there is right: one in two such words is, and the others are any word.
    """
    trigram = kneser_ney.fit(data.train, len(data.words))
    (tokens, _, positions), labels = _test(data, size)
    seen = np.concatenate([tokens[:, :1], tokens], axis=1)  # the first one twice
    rows = np.arange(len(tokens))[:, None]
    context = np.stack([seen[rows, positions - 1], seen[rows, positions]], axis=-1)
    real = labels != bert.PAD
    context, labels, stands = context[real], labels[real], tokens[rows, positions][real]
    found = trigram.probabilities(context, labels)
    any_word = 1.0 / (len(data.words) - len(text.SPECIALS))
    shown = trigram.probabilities(context, stands) + any_word
    posterior = found * ((stands == labels) + any_word) / shown
    found = np.where(stands == bert.MASK, found, posterior)
    return metrics.perplexity(float(-np.log(found).mean()))


def make(data: text.Text, size: Size) -> task.Task:
    model = bert.build(vocabulary=len(data.words), **size.model)
    infer, loss, steps = task.inference(model), bert.LOSS(), size.model["steps"]
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)

    def batch(seed: int, step: int) -> task.Batch:
        count = len(data.train) - steps
        starts = task.rows(seed, step, batch=size.batch, count=count)
        return _hidden(
            data, stretches(data.train, starts, steps), task.noise(seed, step)
        )

    def evaluate() -> float:
        x, y = _test(data, size)
        return metrics.perplexity(float(loss(y, task.outputs(infer, x, size.batch))))

    return task.supervised(model, loss, optimizer, batch, evaluate)


def _test(data: text.Text, size: Size) -> task.Batch:
    """The test text, cut into sequences, with the same words hidden each time."""
    steps = size.model["steps"]
    starts = np.arange(0, len(data.test) - steps, steps)
    return _hidden(data, stretches(data.test, starts, steps), task.noise(0, 0))


def _hidden(
    data: text.Text, words: np.ndarray, random: np.random.Generator
) -> task.Batch:
    return bert.mask_tokens(
        words,
        random,
        vocabulary=len(data.words),
        predictions=max(round(words.shape[1] * 0.2), 1),
        specials=len(text.SPECIALS),
    )


def stretches(words: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Words from each start on, behind the mark of a sequence, [starts, steps]."""
    found = words[starts[:, None] + np.arange(steps)]
    found[:, 0] = text.SPECIALS.index("<cls>")
    return found
