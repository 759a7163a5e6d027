"""Sentence pairs as subword numbers: phrases, Multi30k and WMT files.

A subword vocabulary of both languages is learnt from the training pairs (SentencePiece,
the unigram model of Kudo, 2018). No model here.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convergence.data import files, phrases

PAD, START, END = 0, 1, 2  # as in models/sequences.py
TESTED = 400  # phrases


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """A set of sentence pairs.

    Attributes:
      name: of the set, in results.
      source, target: numbers of subwords of the training pairs, END and then PAD
        behind, [n, steps] int32.
      test_source: the same of the test sentences.
      references: their translations, as text.
      pieces: the subword model (a `SentencePieceProcessor`).
    """

    name: str
    source: np.ndarray
    target: np.ndarray
    test_source: np.ndarray
    references: tuple[str, ...]
    pieces: Any

    @property
    def vocabulary(self) -> int:
        """Subwords there are."""
        return int(self.pieces.get_piece_size())

    def text(self, numbers: np.ndarray) -> str:
        """The text of subword numbers up to the first END."""
        row = [int(number) for number in numbers]
        row = row[: row.index(END)] if END in row else row
        return str(self.pieces.decode([number for number in row if number > END]))


def load(
    directory: Path | None,
    *,
    vocabulary: int,
    steps: int,
    most: int,
    tested: int | None = None,
) -> Pairs:
    """Returns German to English pairs of a data directory, or phrases.

    Args:
      directory: where train.de and train.en are (Multi30k or WMT; .gz or not), and
        test_2016_flickr, newstest2014 or test in both languages; None for phrases.
      vocabulary: subwords, of both languages together.
      steps: of a sequence; longer training pairs are left out, and longer test
        sentences cut.
      most: pairs to train on, the first ones; phrases are as many.
      tested: sentences of a file to test with, the first ones; all of them for None.

    Raises:
      DataError: a file is missing or malformed.
    """
    if directory is None:
        german, english = phrases.phrases(most + TESTED, 0)
        train, test = (german[:most], english[:most]), (german[most:], english[most:])
        return _pairs("phrases", train, test, vocabulary, steps)
    sources = {
        name: lambda path: _of_files(path, vocabulary, steps, (most, tested))
        for name in ("train.de.gz", "train.de")
    }
    return files.choose(directory, sources, "sentence pairs")


def _of_files(
    path: Path, vocabulary: int, steps: int, counts: tuple[int, int | None]
) -> Pairs:
    names = ("test_2016_flickr", "newstest2014", "test")
    there = [n for n in names if (path.parent / path.name.replace("train", n)).exists()]
    test = there[0] if there else "test"
    name = "multi30k" if test == names[0] else path.parent.name
    places = (
        path.parent / path.name.replace("train", part) for part in ("train", test)
    )
    train, held = (
        tuple(side[:count] for side in _both(place))
        for place, count in zip(places, counts, strict=True)
    )
    return _pairs(name, train, held, vocabulary, steps)


def _both(path: Path) -> tuple[list[str], list[str]]:
    """The lines of a German file and of the English one beside it."""
    path = files.beside(path, path.name)
    other = files.beside(path, path.name.replace(".de", ".en"))
    german, english = files.lines(path), files.lines(other)
    if len(german) != len(english) or not german:
        raise files.malformed(
            other,
            f"{len(english)} lines, and {len(german)} in {path.name}",
            "as many lines, each the translation of that line",
        )
    return german, english


def _pairs(
    name: str,
    train: tuple[Sequence[str], Sequence[str]],
    test: tuple[Sequence[str], Sequence[str]],
    vocabulary: int,
    steps: int,
) -> Pairs:
    pieces = subwords([*train[0], *train[1]], vocabulary)
    source, target = (pieces.encode(list(side)) for side in train)
    fits = [max(len(s), len(t)) < steps for s, t in zip(source, target, strict=True)]
    if not any(fits):
        raise ValueError(f"no pair has fewer than {steps} subwords")
    source, target = (
        _numbers([row for row, ok in zip(side, fits, strict=True) if ok], steps)
        for side in (source, target)
    )
    held = _numbers(pieces.encode(list(test[0])), steps)
    return Pairs(name, source, target, held, tuple(test[1]), pieces)


def _numbers(rows: Sequence[Sequence[int]], steps: int) -> np.ndarray:
    whole = np.full((len(rows), steps), PAD, np.int32)
    for line, row in zip(whole, rows, strict=True):
        kept = [*row[: steps - 1], END]
        line[: len(kept)] = kept
    return whole


def subwords(sentences: Sequence[str], vocabulary: int) -> Any:
    """A subword model of that many pieces, learnt from sentences; the same each time.

    Args:
      sentences: text, each one line.
      vocabulary: pieces, at most; PAD, START, END and the unknown among them.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=vocabulary,
        hard_vocab_limit=False,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        pad_id=PAD,
        bos_id=START,
        eos_id=END,
        unk_id=END + 1,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
