"""What a trained model is judged by: figures from NumPy arrays, each a plain float.

No models, no training and no tensors. Boxes are (top, left, bottom, right).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

VOID = 255  # the label of pixels that PASCAL VOC leaves out
Found = tuple[np.ndarray, np.ndarray, np.ndarray]
Truth = tuple[np.ndarray, ...]


def average_precisions(
    found: Sequence[Found],
    truth: Sequence[Truth],
    *,
    classes: int,
    overlap: float = 0.5,
    rule: str = "11-point",
) -> dict[int, float]:
    """PASCAL VOC's average precision, 0 to 1, of each class that has objects.

    Everingham et al., "The PASCAL VOC Challenge" (2010), section 4.2: of a class, best
    score first, a detection is right if the object that it overlaps most is overlapped
    by at least `overlap` and not found yet. Classes without objects do not count.

    Args:
      found: of each image, boxes [n, 4], scores [n] and classes [n], 1 and up.
      truth: of each image, boxes [m, 4], classes [m] and, it may be, which are
        difficult [m]: to find those is neither right nor wrong.
      classes: number of classes.
      overlap: intersection over union that counts.
      rule: "11-point", VOC until 2009, or "area" under the curve, VOC since.
    """
    each = {}
    for kind in range(1, classes + 1):
        objects = [_objects(image, kind) for image in truth]
        total = sum(int((~difficult).sum()) for _, difficult in objects)
        if total:
            right, wrong = _judge(found, objects, kind, overlap)
            each[kind] = average_precision(right, wrong, total, rule=rule)
    return each


def average_precision(
    right: np.ndarray, wrong: np.ndarray, total: int, *, rule: str
) -> float:
    """Average precision of detections, best first; see `average_precisions`.

    Args:
      right: which are right, [n].
      wrong: which are wrong, [n]; those that are neither do not count.
      total: objects there are.
      rule: "11-point" or "area".

    Raises:
      ValueError: another rule.
    """
    if rule not in ("11-point", "area"):
        raise ValueError(f"rule is {rule!r}; there are '11-point' and 'area'")
    hits, misses = np.cumsum(right), np.cumsum(wrong)
    recall, precision = hits / total, hits / np.maximum(hits + misses, 1)
    # Precision at a recall is the best at that recall or beyond.
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    if rule == "area":
        return float(np.sum(np.diff(recall, prepend=0.0) * precision))
    places = np.searchsorted(recall, np.arange(11) / 10 - 1e-12)
    return float(np.append(precision, 0.0)[places].mean())


def confusion(
    labels: np.ndarray, found: np.ndarray, classes: int, *, void: int = VOID
) -> np.ndarray:
    """How often each label [rows] was found as each class [columns]; not `void`."""
    real = labels != void
    pairs = classes * labels[real].astype(np.int64) + found[real]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def class_ious(matrix: np.ndarray) -> dict[int, float]:
    """Intersection over union of each class that a `confusion` has."""
    right = np.diag(matrix)
    union = matrix.sum(0) + matrix.sum(1) - right
    return {int(k): float(right[k] / union[k]) for k in np.flatnonzero(union)}


def accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    """Share of rows whose highest logit is the label's."""
    return float(np.mean(np.argmax(logits, -1) == labels))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the curve of true over false positives; labels are 0 or 1."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.ravel(labels), np.ravel(scores)))


def perplexity(loss: float) -> float:
    """Of a mean loss in nats a token; infinite beyond what a float holds."""
    return math.exp(loss) if loss < 700 else math.inf


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU, 0 to 100, of detokenised text, one reference a sentence."""
    import sacrebleu

    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score)


def sliced_wasserstein(
    real: np.ndarray, fake: np.ndarray, *, seed: int, directions: int = 128
) -> float:
    """Distance of two sets of images, averaged over the levels of their pyramids.

    Karras et al., "Progressive Growing of GANs" (2017), section 5: patches of 7x7 from
    each level of a Laplacian pyramid, standardised by channel, are projected onto
    random directions, and sorted projections are compared. Patches are all those that
    do not overlap; levels go down to 8 pixels.

    Args:
      real: images [count, side, side, channels].
      fake: as many images of the same shape.
      seed: of the directions.
      directions: how many.
    """
    random = np.random.default_rng(seed)
    each = []
    for pair in zip(_pyramid(real), _pyramid(fake), strict=True):
        a, b = (_patches(level) for level in pair)
        lines = random.standard_normal((a.shape[1], directions))
        lines /= np.linalg.norm(lines, axis=0)
        gaps = np.sort(a @ lines, axis=0) - np.sort(b @ lines, axis=0)
        each.append(np.abs(gaps).mean())
    return float(np.mean(each))


def _objects(truth: Truth, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of a class in an image, and which are difficult."""
    own = np.asarray(truth[1]) == kind
    hard = np.asarray(truth[2], bool) if len(truth) > 2 else np.zeros(len(own), bool)
    return np.asarray(truth[0]).reshape(-1, 4)[own], hard[own]


def _judge(
    found: Sequence[Found],
    objects: Sequence[tuple[np.ndarray, np.ndarray]],
    kind: int,
    overlap: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Which detections of a class, best first, are right and which are wrong."""
    rows = [
        (-score, image, index)
        for image, (_, scores, kinds) in enumerate(found)
        for index, score in enumerate(scores)
        if kinds[index] == kind
    ]
    taken = [np.zeros(len(boxes), bool) for boxes, _ in objects]
    right, wrong = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    for place, (_, image, index) in enumerate(sorted(rows)):
        boxes, difficult = objects[image]
        overlaps = _overlaps(np.asarray(found[image][0])[index], boxes)
        best = int(overlaps.argmax()) if len(boxes) else -1
        if best < 0 or overlaps[best] < overlap:
            wrong[place] = True
        elif not difficult[best]:
            right[place], wrong[place] = not taken[image][best], taken[image][best]
            taken[image][best] = True
    return right, wrong


def _overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of a box with each of boxes, [n]."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    union = np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], 1)
    return shared / np.maximum(union - shared, np.finfo(np.float64).tiny)


def _pyramid(images: np.ndarray) -> list[np.ndarray]:
    """Laplacian pyramid: details of each side, and what is left at 8 pixels or more."""
    images, levels = np.asarray(images, np.float64), []
    while images.shape[1] >= 16 and images.shape[1] % 2 == 0:
        count, side, _, channels = images.shape
        halves = images.reshape(count, side // 2, 2, side // 2, 2, channels)
        small = halves.mean((2, 4))
        levels.append(images - small.repeat(2, 1).repeat(2, 2))
        images = small
    return [*levels, images]


def _patches(images: np.ndarray, side: int = 7) -> np.ndarray:
    """Patches [patches, features], each channel at mean 0 and deviation 1."""
    count, channels = len(images), images.shape[-1]
    rows = images.shape[1] // side
    cut = images[:, : rows * side, : rows * side]
    cut = cut.reshape(count, rows, side, rows, side, channels).swapaxes(2, 3)
    cut = cut.reshape(-1, side * side, channels)
    spread = np.maximum(cut.std((0, 1)), 1e-8)
    return ((cut - cut.mean((0, 1))) / spread).reshape(len(cut), -1)
