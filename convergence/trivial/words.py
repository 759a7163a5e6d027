"""Translation word by word: each word's likeliest translation, in the source's order.

Brown et al., "The Mathematics of Statistical Machine Translation" (1993), section 4.1:
Model 1, without its empty word. No word's neighbours are looked at.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 5
AT_A_TIME = 1000  # pairs


def lexicon(
    source: np.ndarray, target: np.ndarray, vocabulary: int, padding: int
) -> np.ndarray:
    """How likely each source word becomes each target word, [source, target].

    Args:
      source: numbers of words, [pairs, steps].
      target: their translations, [pairs, steps].
      vocabulary: words of both languages together.
      padding: the number that is no word.
    """
    shape = (vocabulary, vocabulary)
    likely = np.full(vocabulary**2, 1.0 / vocabulary)
    for _ in range(ROUNDS):
        counts = np.zeros(vocabulary**2)
        for start in range(0, len(source), AT_A_TIME):
            rows = slice(start, start + AT_A_TIME)
            ours, theirs = source[rows, :, None], target[rows, None, :]
            pairs = ours.astype(np.int64) * vocabulary + theirs
            share = likely[pairs] * ((ours != padding) & (theirs != padding))
            share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
            counts += np.bincount(pairs.ravel(), share.ravel(), vocabulary**2)
        totals = counts.reshape(shape).sum(axis=1, keepdims=True)
        likely = (counts.reshape(shape) / np.maximum(totals, 1e-300)).ravel()
    return likely.reshape(shape)


def translated(source: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The likeliest word for each word of the source, of the source's shape."""
    return table.argmax(axis=1)[source]
