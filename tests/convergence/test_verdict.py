"""The rule of convergence/README.md, clause by clause, on results made up for it."""

from __future__ import annotations

import numpy as np
import pytest
from convergence_runs import made_up
from scipy import stats

from convergence import verdict

VALUES = [0.9, 0.92, 0.94, 0.91, 0.93]


def test_equal_settings_pass() -> None:
    judged = verdict.verdict(made_up())
    assert judged.passes
    assert [row.setting for row in judged.rows] == list(verdict.SETTINGS)
    row = judged.rows[-1]
    assert (row.difference, row.low, row.high, row.p) == (0.0, 0.0, 0.0, 1.0)
    assert row.skipped == 5


def test_statistics_are_those_of_scipy() -> None:
    other = [0.93, 0.94, 0.97, 0.92, 0.95]
    row = verdict.verdict(made_up(constant=other)).rows[2]
    test = stats.ttest_rel(other, VALUES)
    expected = test.confidence_interval(0.9)
    assert row.low == pytest.approx(expected.low)
    assert row.high == pytest.approx(expected.high)
    assert row.p == stats.ks_2samp(other, VALUES).pvalue
    assert row.deviation == np.std(other, ddof=1)


def test_the_last_loss_is_the_mean_over_seeds_of_the_curves_ends() -> None:
    result = made_up()
    own = [run for run in result["runs"] if run["setting"] == "constant"]
    for index, run in enumerate(own):
        run["losses"] = [[9.0, float(index)], [7.0, 7.0]]
    assert verdict.verdict(result).rows[2].loss == 2.0
    own[0]["losses"][0][-1] = None  # nothing finite
    assert verdict.verdict(result).rows[2].loss is None


@pytest.mark.parametrize(
    ("other", "passes"),
    [
        ([v - 0.04 for v in VALUES], True),  # the margin is 0.05
        ([v - 0.06 for v in VALUES], False),
        ([v + 0.06 for v in VALUES], False),
        ([0.8, 1.0, 0.94, 1.0, 0.83], False),  # the mean is right, but too noisy
    ],
)
def test_the_interval_lies_within_the_margin(other: list[float], passes: bool) -> None:
    assert verdict.verdict(made_up(dynamic=other)).passes is passes


@pytest.mark.parametrize(("dtype", "passes"), [("float16", True), ("bfloat16", False)])
def test_without_scaling_only_bfloat16_must_pass(dtype: str, passes: bool) -> None:
    result = made_up(dtype=dtype, unscaled=[0.1] * 5)
    judged = verdict.verdict(result)
    assert judged.passes is passes
    assert judged.rows[1].reasons


def test_a_diverged_run_fails_whatever_it_counts() -> None:
    result = made_up()
    result["runs"][-1]["diverged"] = True
    judged = verdict.verdict(result)
    assert judged.reasons == ("dynamic: 1 runs diverged",)


def test_float32_must_have_learned() -> None:
    low = [0.3] * 5
    judged = verdict.verdict(made_up(**dict.fromkeys(verdict.SETTINGS, low)))
    assert judged.reasons == ("float32: has not learned: accuracy 0.3, wanted 0.8",)


def test_missing_runs_fail() -> None:
    result = made_up()
    del result["runs"][-1]
    assert verdict.verdict(result).reasons == ("19 of 20 runs are done",)


@pytest.mark.parametrize(
    ("errors", "passes"),
    [
        ([0.01, 0.4, 0.9], True),
        ([1.0, 1.0, 0.1], False),  # vanished, or one power of two too many
        ([0.5, 0.5, 0.1], False),  # one too few
        ([None, None, 0.1], False),  # not finite, and nobody noticed
        ([], False),  # never finite
    ],
)
def test_gradients_are_those_of_float32(
    errors: list[float | None], passes: bool
) -> None:
    result = made_up()
    (run,) = (r for r in result["runs"] if (r["setting"], r["seed"]) == ("constant", 0))
    run["probes"] = [{"error": error, "overflow": False} for error in errors]
    run["probes"].append({"overflow": True})  # left out, as training leaves it out
    assert verdict.verdict(result).passes is passes


def test_one_seed_tells_nothing() -> None:
    assert verdict.interval([0.0]) == (-np.inf, np.inf)
