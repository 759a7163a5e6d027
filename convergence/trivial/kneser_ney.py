"""The trigram of running text, smoothed as interpolated Kneser and Ney.

Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling"
(1999), section 2.7, interpolated: from each count a discount is taken, and what is
taken is given out as the next lower order has it, in which a word counts by how many
different words it follows. Under the lowest order all words are alike. No text is read
here.
"""

from __future__ import annotations

import dataclasses

import numpy as np

ORDER = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """Sequences of n words, each as one number: the last word is its lowest digit.

    Attributes:
      grams: those there are, rising, [grams].
      counts: of each; below the highest order, of the different words before it.
      contexts: sequences of the first n - 1 words, rising, [contexts].
      totals: of each context, the sum of its counts.
      kinds: of each context, how many different words follow.
      discount: what is taken from each count.
    """

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


@dataclasses.dataclass(frozen=True, slots=True)
class Trigram:
    """A fitted model.

    Attributes:
      vocabulary: how many words there are.
      orders: of one word, two words and three.
    """

    vocabulary: int
    orders: tuple[Order, ...]

    def probabilities(self, context: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The probability of each word behind the two words before it, [words].

        Args:
          context: the two words before each, [words, 2].
          words: [words].
        """
        before, last = context.astype(np.int64).T
        size = self.vocabulary
        contexts = (np.zeros_like(last), last, before * size + last)
        found = np.full(len(words), 1.0 / size)
        for order, context in zip(self.orders, contexts, strict=True):
            found = _interpolated(order, context, context * size + words, found)
        return found


def fit(words: np.ndarray, vocabulary: int) -> Trigram:
    """Counts a running text, [words]; numbers of words are below `vocabulary`."""
    words = words.astype(np.int64)
    grams = sum(
        words[place : len(words) - ORDER + 1 + place]
        * vocabulary ** (ORDER - 1 - place)
        for place in range(ORDER)
    )
    orders: list[Order] = []
    for length in range(ORDER, 0, -1):
        grams, counts = np.unique(grams, return_counts=True)
        orders.insert(0, _order(grams, counts, vocabulary))
        grams = grams % vocabulary ** (length - 1)  # without the first word
    return Trigram(vocabulary, tuple(orders))


def _order(grams: np.ndarray, counts: np.ndarray, vocabulary: int) -> Order:
    contexts, place = np.unique(grams // vocabulary, return_inverse=True)
    # Of a text in which no count is 1, as if one were: nothing may have no chance.
    once, twice = max(int((counts == 1).sum()), 1), int((counts == 2).sum())
    return Order(
        grams,
        counts,
        contexts,
        np.bincount(place, counts),
        np.bincount(place),
        once / (once + 2 * twice),
    )


def _interpolated(
    order: Order, contexts: np.ndarray, grams: np.ndarray, lower: np.ndarray
) -> np.ndarray:
    """The discounted share, and of what was taken the lower order's.

    Behind a context that the text does not have, the lower order alone.
    """
    counts = _looked_up(order.grams, order.counts, grams)
    totals = _looked_up(order.contexts, order.totals, contexts)
    kinds = _looked_up(order.contexts, order.kinds, contexts)
    kept = np.maximum(counts - order.discount, 0.0) + order.discount * kinds * lower
    return np.where(totals > 0, kept / np.maximum(totals, 1.0), lower)


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key; 0 for one that is not there."""
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
