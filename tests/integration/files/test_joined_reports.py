"""`joined_reports`: the report on a file is the sum of those on its functions."""

from __future__ import annotations

import dataclasses

import pytest
from report_pages import large_report

from amp.integration.files.joined_reports import joined


def test_one_graph_keeps_its_report() -> None:
    report = large_report(20)
    assert joined({"": report}) is report


def test_counts_and_times_are_sums_and_nodes_are_named_after_their_function() -> None:
    one, two = large_report(20), large_report(30)
    left = dataclasses.replace(two, nodes_low=0, verdict="left in float32: no gain")
    both = joined({"f": one, "g": left})
    assert both.nodes_total == 50
    assert both.nodes_low == one.nodes_low
    assert both.seconds32 == pytest.approx(one.seconds32 + two.seconds32)
    assert both.verdict.startswith("rewritten, 1 of 2 functions, predicted ")
    assert [d.node for d in both.decisions[19:21]] == [
        f"f::{one.decisions[19].node}",
        f"g::{two.decisions[0].node}",
    ]
    for place, decision in enumerate(both.decisions):
        scope = decision.node.partition("::")[0]
        for read in decision.reads:
            assert both.decisions[read].node.startswith(f"{scope}::")
            assert abs(read - place) < 30


def test_where_nothing_is_rewritten_each_reason_is_told_once() -> None:
    left = dataclasses.replace(
        large_report(5), nodes_low=0, verdict="left in float32: no gain"
    )
    assert joined({"f": left, "g": left}).verdict == "left in float32: no gain"
