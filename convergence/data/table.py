"""Tables for Wide & Deep: fields as numbers of categories, and plain numbers.

Buckets and scaling come from the training rows alone. Crosses are only named here; the
model makes them.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convergence.data import files

BUCKETS = 10
ADULT_NUMBERS = (
    *("age", "education_num", "capital_gain", "capital_loss", "hours_per_week"),
)
ADULT_FIELDS = (
    *("workclass", "education", "marital_status", "occupation", "relationship"),
    *("race", "gender", "native_country"),
)
# TensorFlow's Wide & Deep tutorial crosses education with occupation, and with age.
ADULT_CROSSES = ((1, 3), (8, 1), (8, 3))


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table.

    Attributes:
      ids: a category of each field, each field with numbers of its own, [n, fields]
        int32.
      numbers: scaled to mean 0 and deviation 1, [n, numbers] float32.
      labels: 0 or 1, [n, 1] float32.
    """

    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table with a label.

    Attributes:
      name: of the set, in results.
      train, test: the splits.
      rows: categories there are, over all fields.
      crosses: fields to be crossed, by their position.
    """

    name: str
    train: Rows
    test: Rows
    rows: int
    crosses: tuple[tuple[int, ...], ...]


def load(directory: Path | None) -> Table:
    """Returns the Adult table of a data directory, or digits as a table.

    Raises:
      DataError: a file is missing or malformed.
    """
    if directory is None:
        return digits()
    sources = {"adult_train.csv.gz": adult, "adult_train.csv": adult}
    return files.choose(directory, sources, "the Adult table")


def digits() -> Table:
    """scikit-learn's 1797 digits as rows; the label is whether a digit is even.

    Numbers are the means of squares of 2 pixels a side, and tenths of them the fields;
    neighbours in a row are crossed. Every third row is for testing.
    """
    from sklearn import datasets

    pixels, digits = datasets.load_digits(return_X_y=True)
    values = pixels.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    labels = digits % 2 == 0
    test = np.arange(len(labels)) % 3 == 0
    ids = bucketed(values, ~test)
    crosses = tuple((i, i + 1) for i in range(0, 16, 2))
    return _table("digits_even", ids, values, labels, test, crosses)


def adult(path: Path) -> Table:
    """UCI's Adult table in two CSV files with a header.

    Raises:
      DataError: a file is missing or malformed.
    """
    other = files.beside(path, path.name.replace("train", "test"))
    sides = [_columns(p) for p in (path, other)]
    count = len(sides[0]["income_bracket"])
    whole = {name: [*sides[0][name], *sides[1][name]] for name in sides[0]}
    test = np.arange(len(whole["income_bracket"])) >= count
    values = np.stack([np.array(whole[n], float) for n in ADULT_NUMBERS], 1)
    kinds = [_categories(whole[name], ~test) for name in ADULT_FIELDS]
    ids = np.concatenate([np.stack(kinds, 1), bucketed(values[:, :1], ~test)], 1)
    labels = np.array([word.startswith(">50K") for word in whole["income_bracket"]])
    return _table("adult", ids, values, labels, test, ADULT_CROSSES)


def _columns(path: Path) -> dict[str, list[str]]:
    wanted = (*ADULT_FIELDS, *ADULT_NUMBERS, "income_bracket")
    expected = f"CSV with a header that has {', '.join(wanted)}"
    rows = list(csv.DictReader(io.StringIO(files.text(path)), skipinitialspace=True))
    missing = set(wanted) - set(rows[0] if rows else ())
    if missing:
        raise files.malformed(path, f"no {', '.join(sorted(missing))}", expected)
    try:
        for row in rows:
            tuple(float(row[name]) for name in ADULT_NUMBERS)
    except (TypeError, ValueError) as e:
        raise files.malformed(path, f"a number is none: {e}", expected) from e
    return {name: [row[name] for row in rows] for name in wanted}


def _categories(words: Sequence[str], train: np.ndarray) -> np.ndarray:
    """Numbers of words, 0 for one that no training row has."""
    seen = sorted({word for word, known in zip(words, train, strict=True) if known})
    number = {word: index + 1 for index, word in enumerate(seen)}
    return np.array([number.get(word, 0) for word in words])


def bucketed(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Which tenth of the training values each value is in, [n, columns]."""
    cuts = np.quantile(values[train], np.arange(1, BUCKETS) / BUCKETS, axis=0)
    pairs = zip(values.T, cuts.T, strict=True)
    return np.stack([np.searchsorted(cut, column) for column, cut in pairs], 1)


def _table(
    name: str,
    ids: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    crosses: tuple[tuple[int, ...], ...],
) -> Table:
    sizes = ids.max(axis=0) + 1
    ids = ids + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    mean, deviation = values[~test].mean(axis=0), values[~test].std(axis=0)
    scaled = (values - mean) / np.maximum(deviation, 1e-6)
    train, held = (
        Rows(
            ids[side].astype(np.int32),
            scaled[side].astype(np.float32),
            labels[side].astype(np.float32).reshape(-1, 1),
        )
        for side in (~test, test)
    )
    return Table(name, train, held, int(sizes.sum()), crosses)
