"""Beam search against brute force, and the loss of tokens by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from models import sequences
from models.sequences import END, PAD, START

VOCABULARY, STEPS = 5, 4
# Any model of two tokens' memory: logits after the last two.
TABLE = np.random.default_rng(7).normal(0, 1.5, (2, VOCABULARY, VOCABULARY, VOCABULARY))
TABLE = TABLE.astype(np.float32)


def step(tokens: tf.Tensor, state: tuple) -> tuple[tf.Tensor, tuple]:
    row, before = state
    places = tf.stack([row, before, tokens], -1)
    return tf.gather_nd(TABLE, places), (row, tokens)


def search(width: int, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    state = (tf.constant([0, 1]), tf.constant([PAD, PAD]))
    found = sequences.beam_search(
        step, state, batch=2, width=width, steps=STEPS, penalty=penalty
    )
    return found[0].numpy(), found[1].numpy()


def score(row: int, words: tuple[int, ...], penalty: float) -> float:
    """A sequence's, by itself."""
    before, last, total = PAD, START, 0.0
    for word in words:
        logits = TABLE[row, before, last].astype(np.float64)
        total += logits[word] - np.log(np.exp(logits).sum())
        before, last = last, word
    return total / ((5 + len(words)) / 6) ** penalty


def every_sequence() -> list[tuple[int, ...]]:
    words = [w for w in range(VOCABULARY) if w not in (PAD, START, END)]
    found = []
    for length in range(STEPS):
        found += [(*w, END) for w in itertools.product(words, repeat=length)]
    return found + list(itertools.product(words, repeat=STEPS))


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_the_widest_beam_is_brute_force(penalty: float) -> None:
    """Wide enough for every beginning there is, it finds them all, in order."""
    every = every_sequence()
    found, scores = search(len(every), penalty)
    for row in range(2):
        ranked = sorted(every, key=lambda words, r=row: -score(r, words, penalty))
        wanted = [[*w, *[PAD] * (STEPS - len(w))] for w in ranked]
        np.testing.assert_array_equal(found[row], wanted)
        exact = [score(row, words, penalty) for words in ranked]
        np.testing.assert_allclose(scores[row], exact, rtol=1e-5)


def test_a_beam_of_one_is_greedy_search() -> None:
    found, _ = search(1, 0.6)
    for row in range(2):
        before, last, words = PAD, START, []
        while last != END and len(words) < STEPS:
            logits = TABLE[row, before, last].copy()
            logits[[PAD, START]] = -np.inf
            before, last = last, int(logits.argmax())
            words.append(last)
        np.testing.assert_array_equal(found[row, 0, : len(words)], words)
        assert not found[row, 0, len(words) :].any()


def test_token_loss_is_the_mean_over_real_tokens() -> None:
    logits = np.log(np.array([[[1, 1, 2], [1, 1, 6], [9, 1, 1]]], np.float32))
    loss = sequences.TokenLoss()(np.array([[2, 1, PAD]]), logits)
    assert float(loss) == pytest.approx((np.log(2) + np.log(8)) / 2, rel=1e-6)
    assert float(sequences.TokenLoss()(np.zeros((1, 3), int), logits)) == 0.0


def test_smoothing_mixes_in_the_even_distribution() -> None:
    logits = np.log(np.array([[[1, 1, 2]]], np.float32))
    loss = float(sequences.TokenLoss(0.3)(np.array([[2]]), logits))
    even = (2 * np.log(4) + np.log(2)) / 3
    assert loss == pytest.approx(0.7 * np.log(2) + 0.3 * even, rel=1e-6)


def test_examples_are_reversed_and_moved_by_one() -> None:
    (source, target), after = sequences.example_pairs(
        4, 0, vocabulary=9, target_vocabulary=7, steps=6
    )
    assert source.shape == target.shape == after.shape == (4, 6)
    assert max(source.max(), target.max()) < 7
    for words, read, wanted in zip(source, target, after, strict=True):
        length = np.count_nonzero(words)
        np.testing.assert_array_equal(wanted[:length], words[:length][::-1])
        assert wanted[length] == END
        assert read[0] == START
        np.testing.assert_array_equal(read[1 : length + 1], wanted[:length])
