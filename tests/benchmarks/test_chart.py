"""The chart has a bar for each gain, and is the same in every drawing."""

from __future__ import annotations

from timed_runs import results, run

from benchmarks import chart, table


def test_the_chart_has_a_panel_an_executor_and_a_bar_a_gain() -> None:
    runs = [run(), run("keras", 0.8), run("amp", 0.5)]
    runs += [run(executor="xla"), run("amp", executor="xla")]
    drawn = chart.draw(results(*runs))
    assert drawn is not None
    for title in (*table.EXECUTORS.values(), *table.NAMES.values()):
        assert title in drawn
    assert drawn.count(f"fill: {chart.COLOURS['amp']}") == 3  # two bars and the legend
    assert drawn.count(f"fill: {chart.COLOURS['keras']}") == 2
    assert chart.draw(results(*runs)) == drawn
    assert chart.draw(results()) is None
