"""Running text as numbers of words or of letters: Python's help topics, Penn Treebank.

One language only; sentences in two languages are `pairs`' matter.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from convergence.data import files

# Words begin behind these; the first two are those of models/bert.py.
SPECIALS = ("<pad>", "<mask>", "<cls>", "<unk>", "<eos>")
Split = Callable[[Sequence[str]], list[str]]  # lines to words
UNKNOWN, END = SPECIALS.index("<unk>"), SPECIALS.index("<eos>")


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """Two running texts.

    Attributes:
      name: of the set, in results.
      train, test: numbers of words, [words] int32.
      words: what the numbers mean; the first ones are `SPECIALS`.
    """

    name: str
    train: np.ndarray
    test: np.ndarray
    words: tuple[str, ...]


def load(directory: Path | None, *, most: int = 10_000, letters: bool = False) -> Text:
    """Returns the text of a data directory, or Python's help topics.

    Args:
      directory: where ptb.train.txt and ptb.test.txt are, or, for want of them, the
        English side of Multi30k; None for the help topics.
      most: words of the vocabulary, the specials among them.
      letters: whether letters, signs and blanks stand for words, which the set's name
        says; there are few, so that much of a short run is not spent on learning them.

    Raises:
      DataError: a file is missing or malformed.
    """
    split = _letters if letters else _words
    end = "_letters" if letters else ""
    if directory is None:
        return topics(most, split, f"pydoc_topics{end}")
    sources = {
        "ptb.train.txt": lambda path: _of_files(
            f"ptb{end}", (path, "ptb.test.txt"), most, split
        ),
        "train.en.gz": lambda path: _of_files(
            f"multi30k_en{end}", (path, "test_2016_flickr.en.gz"), most, split
        ),
    }
    return files.choose(directory, sources, "text")


def topics(most: int, split: Split, name: str) -> Text:
    """The text of `pydoc_data.topics`; the last tenth of the lines is for testing."""
    from pydoc_data import topics as held

    lines = "\n".join(held.topics[name] for name in sorted(held.topics)).splitlines()
    lines = [line for line in lines if any(map(str.isalpha, line))]
    cut = len(lines) * 9 // 10
    return _text(name, split(lines[:cut]), split(lines[cut:]), most)


def _of_files(name: str, paths: tuple[Path, str], most: int, split: Split) -> Text:
    path, test = paths
    other = files.beside(path, test)
    parts = [split(files.lines(p)) for p in (path, other)]
    for words, file in zip(parts, (path, other), strict=True):
        if len(words) < 1000:
            raise files.malformed(
                file, f"{len(words)} words", "running text, a sentence a line"
            )
    return _text(name, parts[0], parts[1], most)


def _words(lines: Sequence[str]) -> list[str]:
    """Words in lower case and single signs, an end mark behind each line."""
    found = []
    for line in lines:
        found += re.findall(r"<\w+>|\w+|[^\w\s]", line.lower())
        found.append("<eos>")
    return found


def _letters(lines: Sequence[str]) -> list[str]:
    """Letters in lower case, signs and single blanks, an end mark behind each line."""
    return [
        sign for line in lines for sign in (*" ".join(line.lower().split()), "<eos>")
    ]


def _text(name: str, train: list[str], test: list[str], most: int) -> Text:
    counts = collections.Counter(w for w in train if w not in SPECIALS)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = (*SPECIALS, *ranked[: most - len(SPECIALS)])
    number = {word: index for index, word in enumerate(words)}
    sides = (
        np.array([number.get(word, UNKNOWN) for word in side], np.int32)
        for side in (train, test)
    )
    return Text(name, *sides, words)
