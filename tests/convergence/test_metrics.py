"""Metrics, against examples worked by hand and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from convergence import metrics, task

ONE, TWO, FAR = [0.0, 0, 1, 1], [0.0, 2, 1, 3], [8.0, 8, 9, 9]


def image(*rows: tuple[list[float], float, int]) -> metrics.Found:
    boxes, scores, kinds = zip(*rows, strict=True) if rows else ((), (), ())
    return np.reshape(boxes, (-1, 4)), np.array(scores), np.array(kinds)


def objects(boxes: list[list[float]], kinds: list[int], *more: object) -> metrics.Truth:
    return np.reshape(boxes, (-1, 4)), np.array(kinds), *map(np.array, more)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [("area", 0.5 + 0.5 * 2 / 3), ("11-point", (6 + 5 * 2 / 3) / 11)],
)
def test_average_precision_by_hand(rule: str, wanted: float) -> None:
    """Right, wrong, right of two objects: precision 1 to recall 1/2, then 2/3."""
    found = [image((ONE, 0.9, 1), (FAR, 0.8, 1)), image((TWO, 0.7, 1))]
    truth = [objects([ONE], [1]), objects([TWO], [1])]
    value = metrics.average_precisions(found, truth, classes=1, rule=rule)
    assert value == {1: pytest.approx(wanted)}


def test_an_object_is_found_once_and_by_its_own_class() -> None:
    truth = [objects([ONE], [1])]
    twice = [image((ONE, 0.9, 1), (ONE, 0.8, 1))]
    worse = [image((FAR, 0.9, 1), (ONE, 0.8, 1))]
    other = [image((ONE, 0.9, 2))]
    values = [
        metrics.average_precisions(f, truth, classes=2, rule="area")
        for f in (twice, worse, other, [image()])
    ]
    # Class 2 has no object: it does not count.
    assert values == [{1: value} for value in (1.0, 0.5, 0.0, 0.0)]


def test_difficult_objects_are_neither_right_nor_wrong() -> None:
    found = [image((ONE, 0.9, 1), (ONE, 0.85, 1), (TWO, 0.8, 1))]
    truth = [objects([ONE, TWO], [1, 1], [True, False])]
    for rule in ("area", "11-point"):
        value = metrics.average_precisions(found, truth, classes=1, rule=rule)
        assert value == {1: 1.0}


def test_overlap_must_reach_the_threshold() -> None:
    found, truth = [image(([0, 0, 1, 0.5], 0.9, 1))], [objects([ONE], [1])]
    values = [
        metrics.average_precisions(found, truth, classes=1, overlap=o)
        for o in (0.5, 0.51)
    ]
    assert values == [{1: 1.0}, {1: 0.0}]


def test_precision_of_nothing_is_not_a_number() -> None:
    empty = [objects([], [])]
    found = metrics.average_precisions([image()], empty, classes=3)
    assert math.isnan(task.mean(found))


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'mean'; there are '11-point'"):
        metrics.average_precision(np.ones(1), np.zeros(1), 1, rule="mean")


def test_overlaps_of_classes_by_hand() -> None:
    """Class 0: 1 of 3 pixels; class 1: 1 of 3; class 2 is not there; one void."""
    labels = np.array([[0, 0, 1, 1, 255]])
    found = np.array([[0, 1, 1, 0, 1]])
    matrix = metrics.confusion(labels, found, 3)
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert metrics.class_ious(matrix) == {k: pytest.approx(1 / 3) for k in (0, 1)}


def test_auc_is_the_share_of_pairs_in_order() -> None:
    labels, scores = np.array([[1], [0], [1], [0]]), np.array([0.9, 0.8, 0.7, 0.1])
    assert metrics.auc(labels, scores) == pytest.approx(3 / 4)


def test_perplexity_of_even_odds_is_their_number() -> None:
    assert metrics.perplexity(math.log(50)) == pytest.approx(50)
    assert metrics.perplexity(1e9) == math.inf


def test_accuracy_counts_highest_logits() -> None:
    logits = np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert metrics.accuracy(np.array([1, 0, 0]), logits) == pytest.approx(2 / 3)


def test_bleu_of_the_reference_is_100() -> None:
    pytest.importorskip("sacrebleu")
    text = ["the cat sat on the mat today .", "two three four five six"]
    assert metrics.bleu(text, text) == pytest.approx(100)
    assert metrics.bleu(["a b c d e", "f g h i j"], text) < 5


def test_sliced_distance_grows_with_the_difference() -> None:
    """It is 0 for the same images, small for others alike, large for others unlike."""
    random = np.random.default_rng(0)
    smooth = [random.normal(size=(999, 16, 1, 1)) + random.normal(size=(999, 1, 16, 1))
              for _ in range(2)]  # fmt: skip
    noise = random.normal(size=(999, 16, 16, 1))
    a, b = smooth
    same, alike, unlike = (
        metrics.sliced_wasserstein(a, other, seed=1) for other in (a, b, noise)
    )
    assert same == 0 < alike < unlike / 2
