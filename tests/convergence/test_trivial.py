"""Trivial models against examples worked by hand; what it takes to beat one."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pytest

from convergence import trivial
from convergence.trivial import boxes, kneser_ney, pixels, ridge, words

A, B, C = 0, 1, 2


def chance(text: list[int], vocabulary: int, *gram: int) -> float:
    model = kneser_ney.fit(np.array(text), vocabulary)
    *context, word = gram
    found = model.probabilities(np.array([context]), np.array([word]))
    return float(found[0])


def test_the_trigram_by_hand() -> None:
    """Text a b a b a c: trigrams aba 2, bab 1, bac 1; one word in four stands once.

    Trigrams: n1 = 2, n2 = 1, D = 2 / (2 + 2) = 1/2. Bigrams by the words before them:
    ba 1 (of aba), ab 1 (of bab), ac 1 (of bac): n1 = 3, n2 = 0, D = 1. Words by the
    words before them: a 1, b 1, c 1: D = 1; so a word alone has 1/3 · 3 of the third
    that each of three has: 1/3.
    """
    text = [A, B, A, B, A, C]
    # Behind a: b and c, 1 each of 2, all of it discounted: the words alone, 1/3.
    # Behind (b, a): b and c, 1 each of 2: (1 - 1/2) / 2 + 1/2 · 2 / 2 · 1/3.
    assert chance(text, 3, B, A, B) == pytest.approx(1 / 4 + 1 / 6)
    assert chance(text, 3, B, A, A) == pytest.approx(1 / 6)
    # Behind (a, b): a twice: (2 - 1/2) / 2 + 1/2 · 1 / 2 · 1/3.
    assert chance(text, 3, A, B, A) == pytest.approx(3 / 4 + 1 / 12)
    # (c, a) is nowhere: what is behind a. (a, c) and c are nowhere: words alone.
    assert chance(text, 3, C, A, B) == pytest.approx(1 / 3)
    assert chance(text, 3, A, C, A) == pytest.approx(1 / 3)


def slow(text: list[int], size: int, gram: tuple[int, ...]) -> float:
    """The formula of section 2.7 as it is written, with sets of words."""
    if not gram:
        return 1.0 / size
    length = len(gram)
    highest = collections.Counter(zip(text, text[1:], text[2:], strict=False))
    counts: dict[tuple[int, ...], float] = collections.Counter(highest)
    for _ in range(3 - length):
        before: dict[tuple[int, ...], set[int]] = collections.defaultdict(set)
        for first, *rest in counts:
            before[tuple(rest)].add(first)
        counts = {rest: len(firsts) for rest, firsts in before.items()}
    ones, twos = (sum(c == n for c in counts.values()) for n in (1, 2))
    discount = max(ones, 1) / (max(ones, 1) + 2 * twos)
    behind = [c for g, c in counts.items() if g[:-1] == gram[:-1]]
    lower = slow(text, size, gram[1:])
    if not behind:
        return lower
    kept = max(counts.get(gram, 0) - discount, 0.0)
    return (kept + discount * len(behind) * lower) / sum(behind)


def test_the_trigram_is_the_formula_and_sums_to_one() -> None:
    random = np.random.default_rng(0)
    text = (random.geometric(0.4, 300) % 5).tolist()  # of 6 words one is never seen
    model = kneser_ney.fit(np.array(text), 6)
    grams = np.array(list(itertools.product(range(6), repeat=3)))
    found = model.probabilities(grams[:, :2], grams[:, 2])
    expected = [slow(text, 6, tuple(gram)) for gram in grams.tolist()]
    # A sum of 3 terms of at most 1, with a few roundings each.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.reshape(36, 6).sum(axis=1), 1.0, atol=1e-13)
    assert found.min() > 0


def test_what_the_trigram_has_seen_is_likelier() -> None:
    text = np.tile([0, 1, 2, 3], 50)
    model = kneser_ney.fit(text, 4)
    context = np.array([[0, 1], [0, 1]])
    right, wrong = model.probabilities(context, np.array([2, 3]))
    assert right > 0.9 > 10 * wrong


def test_ridge_regression_is_a_fit_in_pieces_without_a_penalty_on_the_constant() -> (
    None
):
    """Without a penalty, lines are found; with a large one, each class's share."""
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 2, 3))
    y = (x[:, 0, 1] + 0.5 > x[:, 1, 2]).astype(int)
    pieces = [(x[:25], y[:25]), (x[25:], y[25:])]
    none, large = ridge.fit(pieces, 2, strengths=(0.0, 1e9))
    rows = np.concatenate([x.reshape(60, -1), np.ones((60, 1))], axis=1)
    expected = np.linalg.lstsq(rows, np.eye(2)[y], rcond=None)[0]
    np.testing.assert_allclose(none, expected, atol=1e-10)
    shares = np.bincount(y) / 60
    found = ridge.scores(large, x)
    np.testing.assert_allclose(found, np.tile(shares, (60, 1)), atol=1e-6)


def test_independent_pixels_keep_their_places_and_lose_their_neighbours() -> None:
    rows = np.arange(400)
    images = np.stack([rows, rows + 1000], axis=1).reshape(400, 1, 2, 1)
    drawn = pixels.independent(images, 300, seed=2)[:, 0, :, 0]
    assert drawn[:, 0].max() < 1000 <= drawn[:, 1].min()
    # Each is drawn by itself; 300 pairs of 400 agree by chance about 300 / 400 times.
    assert (drawn[:, 1] - drawn[:, 0] == 1000).sum() < 10
    assert len(set(drawn[:, 0])) > 150


def test_the_most_frequent_class_of_each_place_without_void() -> None:
    masks = np.array([[[0, 2]], [[1, 255]], [[1, 255]], [[255, 2]], [[0, 1]]])
    np.testing.assert_array_equal(pixels.most_frequent(masks, 3), [[0, 2]])


def test_mean_boxes_are_the_clusters_of_a_class() -> None:
    low, high = np.array([0.1, 0.1, 0.2, 0.2]), np.array([0.6, 0.6, 0.9, 0.9])
    each = np.array([[low, high], [low, high], [low, high * 0]])
    labels = np.array([[2, 2], [2, 1], [2, 0]])
    found, scores, kinds = boxes.mean_boxes(each, labels, classes=3)
    assert set(kinds) == {1, 2}  # class 3 has no object
    np.testing.assert_allclose(found[kinds == 1], [high])
    own = found[kinds == 2]
    assert len(own) <= 4
    assert any(np.allclose(box, low) for box in own)
    assert any(np.allclose(box, high) for box in own)
    # Four boxes in three images, the most frequent first.
    assert scores[kinds == 2].sum() == pytest.approx(4 / 3)
    assert (np.diff(scores[kinds == 2]) <= 0).all()


def test_a_lexicon_finds_which_word_means_which() -> None:
    """1 and 2 stand together with 5 and 6, in any order; 2 alone means 6; 0 is none."""
    source = np.array([[1, 2], [2, 1], [2, 0], [1, 3]])
    target = np.array([[6, 5], [5, 6], [6, 0], [7, 5]])
    table = words.lexicon(source, target, vocabulary=8, padding=0)
    np.testing.assert_array_equal(words.translated(source, table)[3], [5, 7])
    np.testing.assert_array_equal(words.translated(source, table)[0], [5, 6])
    np.testing.assert_allclose(table[1:4].sum(axis=1), 1.0)
    assert not table[:, 0].any()


def result(higher: bool, values: list[float], bound: float) -> dict[str, Any]:
    runs = [{"setting": "float32", "metric": value} for value in values]
    runs.append({"setting": "dynamic", "metric": 1e9})
    told = {"name": "x", "value": bound}
    return {"rule": {"higher": higher}, "runs": runs, "trivial": told}


def test_float32_beats_the_trivial_model_in_the_mean_or_not() -> None:
    assert trivial.beats(result(True, [0.3, 0.6], 0.4))
    assert not trivial.beats(result(True, [0.3, 0.4], 0.4))
    assert trivial.beats(result(False, [30.0, 34.0], 33.0))
    assert not trivial.beats(result(False, [30.0, 36.0], 33.0))
    assert not trivial.beats(result(True, [0.4], 0.4))


def test_nothing_is_beaten_without_runs_or_a_trivial_model() -> None:
    assert not trivial.beats(result(True, [], 0.0))
    told = result(True, [0.5], 0.0)
    del told["trivial"]
    assert not trivial.beats(told)
