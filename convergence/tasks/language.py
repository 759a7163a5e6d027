"""An LSTM language model of running text; perplexity.

The text is cut into as many streams as a batch has rows. Each stream is read from its
beginning to its end, the state carried along, and then again; where it begins depends
on the seed. No gradient flows from one window into the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from convergence import metrics, task
from convergence.data import text
from convergence.families import Size
from convergence.trivial import kneser_ney
from models import lstm_lm


def load(size: Size, directory: Path | None) -> text.Text:
    return text.load(directory, **size.data)


def trivial(data: text.Text, size: Size) -> float:
    """Perplexity of a Kneser-Ney trigram, of the words that the model is judged on."""
    trigram = kneser_ney.fit(data.train, len(data.words))
    every = np.arange(len(data.test))
    places = np.concatenate([x.ravel() for x, _ in _windows(every, size)])
    before = np.concatenate([[text.END], data.test])
    context = np.stack([before[places], data.test[places]], axis=1)
    found = trigram.probabilities(context, data.test[places + 1])
    return metrics.perplexity(float(-np.log(found).mean()))


def make(data: text.Text, size: Size) -> task.Task:
    sizes = dict(size.model)
    steps = sizes.pop("steps")
    model = lstm_lm.build(vocabulary=len(data.words), carry=True, **sizes)
    rate = task.cosine(size.rate, size.steps)
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=5.0)
    zeros = lstm_lm.initial_states(model, size.batch)
    states = tuple(tf.Variable(value, trainable=False) for value in zeros)
    entropy = lstm_lm.LOSS()

    def loss(batch: task.Batch) -> tf.Tensor:
        (words, keep), after = batch
        before = [state * keep for state in states]
        logits, *found = model([words, *before], training=True)
        for state, value in zip(states, found, strict=True):
            state.assign(tf.stop_gradient(value))
        return entropy(after, logits)

    def batch(seed: int, step: int) -> task.Batch:
        words = _turned(data.train, seed)
        x, y, first = window(words, step, rows=size.batch, steps=steps)
        return (x, np.float32(not first)), y

    infer = task.inference(model)

    def evaluate() -> float:
        losses, carried = [], zeros
        for x, y in _windows(data.test, size):
            logits, *carried = infer(tf.convert_to_tensor(x), *carried)
            losses.append(float(entropy(y, logits)))
        return metrics.perplexity(float(np.mean(losses)))

    parts = (task.Part(loss, ((optimizer, model.trainable_variables),)),)
    return task.Task(model, lambda stage: parts, batch, evaluate, carried=states)


def _windows(words: np.ndarray, size: Size) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All words of a test text's streams, window by window, and those after them."""
    sizes = {"rows": size.batch, "steps": size.model["steps"]}
    for step in range((len(words) - 1) // size.batch // size.model["steps"]):
        x, y, _ = window(words, step, **sizes)
        yield x, y


def window(
    words: np.ndarray, step: int, *, rows: int, steps: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    """The words of a step, the word after each, and whether streams begin with it.

    Args:
      words: running text, [words].
      step: which window of the streams; after the last one comes the first.
      rows: streams.
      steps: words of a window.

    Returns:
      Words [rows, steps], the words after them, and the flag.
    """
    length = (len(words) - 1) // rows
    start = step % (length // steps) * steps
    places = np.arange(rows)[:, None] * length + start + np.arange(steps)
    return words[places], words[places + 1], start == 0


def _turned(words: np.ndarray, seed: int) -> np.ndarray:
    return np.roll(words, -int(task.noise(seed, 0).integers(len(words))))
