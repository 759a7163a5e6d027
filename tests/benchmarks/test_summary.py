"""What timed runs come to: ratios within a round, kinds of run, failures."""

from __future__ import annotations

from typing import Any

import pytest
from timed_runs import of_gains, run

from benchmarks import summary


def one_row(*runs: dict[str, Any]) -> summary.Row:
    (row,) = summary.rows(runs)
    return row


def test_a_gain_is_a_ratio_within_its_round() -> None:
    """A machine that is twice as slow in one round changes no gain."""
    row = one_row(
        *(run("float32", 2.0, 0), run("amp", 1.0, 0)),
        *(run("float32", 4.0, 1), run("amp", 2.0, 1)),
        *(run("float32", 9.0, 2), run("amp", 3.0, 2)),
    )
    assert row.gains["amp"] == summary.Spread(2.0, 2.0, 3.0)
    assert row.seconds32 == 4.0


def test_a_round_without_float32_gives_no_gain() -> None:
    row = one_row(run("float32", 2.0, 0), run("amp", 1.0, 0), run("amp", 9.0, 1))
    assert row.gains["amp"] == summary.Spread(2.0, 2.0, 2.0)
    assert row.gains["keras"] is None


def test_a_mode_that_failed_has_no_gain() -> None:
    failed = {"case": "mlp", "executor": "kernels", "mode": "keras", "round": 0}
    row = one_row(run(), {**failed, "error": "ValueError: no"})
    assert row.failures == {"keras": summary.Failure("failed", "ValueError: no")}
    assert row.gain("keras") is None
    assert row.over_best is None


@pytest.mark.parametrize("field", ["loss_first", "loss_last"])
def test_a_loss_that_is_not_finite_is_a_failure_and_no_gain(field: str) -> None:
    row = one_row(run(), run("amp", 0.1, **{field: None}))
    wanted = summary.Failure("not finite", "the loss is not finite")
    assert row.failures == {"amp": wanted}
    assert row.gain("amp") is None


def test_the_rounds_before_a_loss_that_is_not_finite_count() -> None:
    runs = [run(number=0), run("amp", 0.5, 0), run(number=1)]
    row = one_row(*runs, run("amp", 0.1, 1, loss_last=None))
    assert row.gains["amp"] == summary.Spread(2.0, 2.0, 2.0)
    assert row.failures["amp"].word == "not finite in round 2"


def test_a_loss_of_float32_that_is_not_finite_gives_no_gain() -> None:
    row = one_row(run(seconds=9.0, loss_last=None), run("amp", 0.5))
    assert (row.gain("amp"), row.seconds32) == (None, None)


def test_a_mode_that_fails_after_a_round_says_in_which() -> None:
    failed = {"case": "mlp", "executor": "kernels", "mode": "amp", "round": 1}
    row = one_row(run(), run("amp", 0.5), {**failed, "error": "ended by signal 9"})
    assert row.failures["amp"].word == "failed in round 2"
    assert row.failures["amp"].cause == "ended by signal 9"


def test_memory_and_first_step_are_the_plugins_over_float32s() -> None:
    row = one_row(
        run(first_step_seconds=3.0, peak_bytes=200, steady_peak_bytes=None),
        run("amp", first_step_seconds=4.0, peak_bytes=100, rewrite_seconds=1.0),
    )
    (start,) = row.starts.values()
    assert start.memory == summary.Spread(0.5, 0.5, 0.5)
    assert start.steady_memory is None
    assert (start.first32, start.first, row.rewriting) == (3.0, 4.0, 1.0)


def test_a_neighbour_is_compared_within_its_round() -> None:
    """Medians over rounds, one divided by the other, would be 3 / 2."""
    row = one_row(
        *(run("keras", 2.0, 0), run("amp", 1.0, 0)),
        *(run("keras", 3.0, 1), run("amp", 6.0, 1)),
        *(run("keras", 4.0, 2), run("amp", 2.0, 2)),
    )
    assert row.over["keras"] == summary.Spread(2.0, 0.5, 2.0)
    assert row.over["grappler"] is None
    assert row.over_best == 2.0


def test_the_first_run_and_later_ones_are_told_apart() -> None:
    firsts = [run(first_run=True, peak_bytes=100)]
    firsts.append(run("amp", first_run=True, peak_bytes=200, first_step_seconds=8.0))
    later = [run(number=n, first_run=False) for n in (1, 2)]
    for number in (1, 2):
        more = {"peak_bytes": 50, "first_step_seconds": 2.0 * number}
        later.append(run("amp", 1.0, number, first_run=False, **more))
    row = one_row(*firsts, *later)
    assert list(row.starts) == [summary.FIRST, summary.LATER]
    first, rest = row.starts.values()
    assert (first.memory, first.first) == (summary.Spread(2.0, 2.0, 2.0), 8.0)
    assert (rest.memory, rest.first) == (summary.Spread(0.5, 0.5, 0.5), 3.0)
    assert rest.over == summary.Spread(0.75, 0.5, 1.0)


def test_results_that_do_not_tell_first_runs_have_one_kind() -> None:
    row = one_row(run(), run("amp"), run(number=1), run("amp", number=1))
    assert list(row.starts) == [summary.UNTOLD]
    assert summary.of_kind("peak", summary.UNTOLD) == "peak"
    assert summary.of_kind("peak", summary.LATER) == "peak, later runs"


def test_rows_come_in_the_order_of_the_table() -> None:
    rows = of_gains(resnet50={}, mlp={}, small_mlp={})
    assert [row.case for row in rows] == ["mlp", "small mlp", "resnet50"]
