"""A name that is not known is answered with the one that was probably meant."""

from __future__ import annotations

import pytest

from amp import spelling

NAMES = ("doctor", "tune", "run", "explain", "rewrite")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dcotor", "doctor"),
        ("docter", "doctor"),
        ("Doctor", "doctor"),
        ("rewrit", "rewrite"),
        ("explian", "explain"),
        ("quantise", None),
        ("", None),
    ],
)
def test_letters_left_out_swapped_or_large_do_not_hide_a_name(name, meant):
    assert spelling.closest(name, NAMES) == meant


def test_where_nothing_is_close_the_caller_says_what_to_do():
    assert spelling.hint("dcotor", NAMES, "ask") == "did you mean doctor?"
    assert spelling.hint("quantise", NAMES, "ask") == "ask"
