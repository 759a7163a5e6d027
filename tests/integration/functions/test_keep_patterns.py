"""A `keep` pattern that matches nothing that ran is told, once."""

from __future__ import annotations

import warnings

import pytest

from amp.graph_rewrite.graph import ir
from amp.integration.functions.keep_patterns import KeepPatterns


def module(*names: str) -> ir.Module:
    nodes = {n: ir.Node(n, "NoOp", (), (), "", None, {}) for n in names}
    return ir.Module(ir.Graph("f", nodes), {})


def told(patterns: KeepPatterns) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patterns.warn()
    return [str(each.message) for each in caught]


def test_a_pattern_that_no_function_matches_is_told_once() -> None:
    patterns = KeepPatterns(["dense*", "norm*"])
    patterns.met(module("dense_1"))
    patterns.met(module("other"))
    (text,) = told(patterns)
    assert "keep pattern norm* matched no node" in text
    assert told(patterns) == []


@pytest.mark.parametrize("ran", [False, True])
def test_nothing_is_told_before_anything_ran_or_if_all_match(ran: bool) -> None:
    patterns = KeepPatterns(["dense*"])
    if ran:
        patterns.met(module("dense_1"))
    assert told(patterns) == []
