"""`screen`: what is printed fits the terminal, and nothing of it is lost."""

from __future__ import annotations

import pytest

from amp.cli import screen

LINES = [
    "  figures      not measured: two multiply-adds a lane and cycle, the rest as on X",
    "  change   of norm/eps: AMP_DTYPE=bfloat16, or a constant that float16 holds",
    "     1.49 ms  f_35::PartitionedCall/sequential/second (MatMul)",
    "a line without columns that is much longer than a screen of a phone is wide",
]


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("line", LINES)
def test_no_line_is_wider_and_no_word_is_lost(line: str, width: int) -> None:
    made = screen.fitted(line, width)
    assert max(map(len, made.splitlines())) <= width
    assert "".join(made.split()) == "".join(line.split())


def test_the_rest_stands_under_the_text_and_a_name_is_broken_at_slashes() -> None:
    assert screen.fitted("  change   of one two three", 20) == (
        "  change   of one\n      two three"
    )
    assert screen.fitted("1 us  model/dense/MatMul x", 15) == (
        "1 us  model/\n     dense/\n     MatMul x"
    )


@pytest.mark.parametrize("blank", ["\t", "\N{NO-BREAK SPACE}", " \t "])
def test_words_that_another_blank_sets_apart_stay_two(blank: str) -> None:
    line = blank.join(["one", "two", "three", "four"])
    assert screen.fitted(line, 12).split() == line.split()


def test_what_fits_stays_as_it_is() -> None:
    assert screen.fitted("a  b\n\n  c", 10) == "a  b\n\n  c"


def test_the_terminals_width_counts_and_a_pipe_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    screen.show("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.setenv("COLUMNS", "40")
    screen.show("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) > 10
