"""Times have the unit that suits them; columns of tables are aligned."""

from __future__ import annotations

import pytest

from amp.graph_rewrite import figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 us"),
        (1.3e-10, "0.13 ns"),
        (1.26e-9, "1.3 ns"),
        (2.5e-7, "250 ns"),
        (1.26e-6, "1.3 us"),
        (9e-4, "900.0 us"),
        (1e-3, "1.00 ms"),
        (12.34, "12.3 s"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds, text):
    assert figures.time(seconds) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (3.0, 2.0, "1.50x faster"),
        (1.0, 1.26, "1.26x slower"),
        (1.0, 1.004, "as fast"),
        (1.0, 0.0, "as fast"),
    ],
)
def test_a_loss_is_called_one(before, after, text):
    assert figures.gain(before, after) == text


def test_words_stand_left_and_figures_right_under_a_ruled_head():
    rows = [("op", "case", "gain"), ("MatMul", "a", "2.00x"), ("Add", "bb", "")]
    assert figures.table(rows, left=2).splitlines() == [
        "op      case   gain",
        "------  ----  -----",
        "MatMul  a     2.00x",
        "Add     bb",
    ]
    assert figures.table(rows).splitlines()[2] == "MatMul     a  2.00x"


def test_a_table_that_is_too_wide_becomes_a_paragraph_a_row():
    rows = [("op", "case", "gain"), ("MatMul", "a b c d e f g", "2.00x"), ("A", "", "")]
    assert figures.table(rows, width=40) == figures.table(rows)
    assert figures.table(rows, width=20).splitlines() == [
        "MatMul",
        "  case  a b c d e f",
        "    g",
        "  gain  2.00x",
        "A",
    ]


def test_a_change_of_time_has_its_sign():
    assert figures.change(2e-6, 5e-6) == "+3.0 us"
    assert figures.change(5e-3, 2e-3) == "-3.00 ms"


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (2048, "2.0 KiB"), (5 * 2**43, "40 TiB")]
)
def test_bytes_have_the_unit_that_suits_them(count, text):
    assert figures.size(count) == text
