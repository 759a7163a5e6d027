"""Half of what is lost without scaling must be shown to be recovered, or not to be."""

from __future__ import annotations

import pytest
from scipy import stats

from convergence import recovery

LOST = [0.30, 0.36, 0.33, 0.35]


@pytest.mark.parametrize(
    ("worse", "says"),
    [
        ([0.0, 0.05, -0.05, 0.02], "equal"),
        (LOST, "different"),  # a scaler that does nothing
        ([0.2, 0.25, 0.3, 0.22], "different"),  # one that recovers too little
        ([0.3, -0.1, 0.25, 0.1], "undecided"),
    ],
)
def test_what_the_interval_says(worse: list[float], says: str) -> None:
    outcome, (low, high) = recovery.outcome(worse, LOST)
    assert outcome == says
    left = [own - lost / 2 for own, lost in zip(worse, LOST, strict=True)]
    expected = stats.ttest_1samp(left, 0.0).confidence_interval(0.9)
    assert (low, high) == pytest.approx(tuple(expected))


def test_where_nothing_is_lost_nothing_is_shown_to_be_recovered() -> None:
    assert recovery.outcome([0.01, -0.01, 0.02], [0.0, 0.0, 0.0])[0] == "undecided"


def test_a_run_that_was_lost_altogether_is_recovered_by_any_that_is_not() -> None:
    assert recovery.outcome([0.0] * 3, [None, *LOST[:2]])[0] == "equal"
    assert recovery.outcome([0.0] * 3, [None] * 3) == ("equal", (0.0, 0.0))
