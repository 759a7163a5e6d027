"""The rule of convergence/README.md, clause by clause, on results made up for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convergence_runs import VALUES, made_up
from scipy import stats

from convergence import verdict
from convergence.settings import SETTINGS

SAME = [2.0] * 5


def row(result: dict[str, Any], setting: str) -> verdict.Row:
    (found,) = (each for each in verdict.rows(result) if each.setting == setting)
    return found


def own(result: dict[str, Any], setting: str) -> list[dict[str, Any]]:
    return [run for run in result["runs"] if run["setting"] == setting]


def test_equal_settings_pass() -> None:
    judged = verdict.verdict(made_up())
    assert (judged.word, judged.reasons, judged.undecided) == ("passes", (), ())
    assert [each.setting for each in judged.rows] == list(SETTINGS)
    last = judged.rows[-1]
    assert last.loss is not None
    assert (last.loss.mean, last.loss.low, last.loss.high) == (0.0, 0.0, 0.0)
    assert last.loss.found == 0.02  # no noise: all that is beyond the margin
    assert (last.skipped, last.moves) == (5, (15, 5))


def test_statistics_are_of_pairs() -> None:
    other = [0.93, 0.94, 0.97, 0.92, 0.95]
    losses = [2.0, 2.01, 2.02, 1.99, 2.0]
    found = row(made_up(constant=other, losses={"constant": losses}), "constant")
    assert found.metric is not None
    assert found.loss is not None
    expected = stats.ttest_rel(other, VALUES).confidence_interval(0.9)
    assert (found.metric.low, found.metric.high) == pytest.approx(tuple(expected))
    ratios = np.log(np.divide(losses, 2.0))
    expected = stats.ttest_1samp(ratios, 0.0).confidence_interval(0.9)
    assert (found.loss.low, found.loss.high) == pytest.approx(tuple(expected))
    assert found.deviation == np.std(other, ddof=1)


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([2.0 * 1.015] * 5, "passes"),  # the margin is 2 %
        ([2.0 * 1.03] * 5, "fails"),
        ([2.0 / 1.03] * 5, "fails"),
        ([1.9, 2.1, 2.0, 2.1, 1.9], "undecided"),
    ],
)
def test_the_loss_is_within_its_margin(losses: list[float], word: str) -> None:
    assert verdict.verdict(made_up(losses={"dynamic": losses})).word == word


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ([v - 0.04 for v in VALUES], "passes"),  # the margin is 0.05
        ([v - 0.06 for v in VALUES], "fails"),
        ([v + 0.06 for v in VALUES], "fails"),
        ([0.8, 1.0, 0.94, 1.0, 0.83], "undecided"),
    ],
)
def test_the_metric_is_within_its_margin(other: list[float], word: str) -> None:
    assert verdict.verdict(made_up(dynamic=other)).word == word


@pytest.mark.parametrize(("dtype", "passes"), [("float16", True), ("bfloat16", False)])
def test_without_scaling_only_bfloat16_must_pass(dtype: str, passes: bool) -> None:
    result = made_up(dtype=dtype, unscaled=[0.1] * 5)
    assert verdict.verdict(result).passes is passes
    assert row(result, "unscaled").outcome == "different"


def test_noise_that_is_not_called_equal_leaves_all_undecided() -> None:
    judged = verdict.verdict(made_up(perturbed=[v - 0.06 for v in VALUES]))
    assert judged.word == "undecided"
    assert judged.undecided[0].startswith("perturbed: the interval of the metric")


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        (SAME, False),
        ([2.2] * 5, True),
        ([1.8] * 5, False),  # another, and better
        ([1.7, 2.5, 2.2, 2.6, 1.8], False),  # perhaps worse
    ],
)
def test_where_scaling_is_needed_a_run_without_it_must_be_worse(
    losses: list[float], passes: bool
) -> None:
    result = made_up(losses={"unscaled": losses})
    result["rule"]["worse"] = "unscaled"
    judged = verdict.verdict(result)
    assert judged.passes is passes
    if not passes:
        assert judged.reasons == ("unscaled: it is not worse, as it was to be",)


def test_lost_gradients_are_worse_too_and_a_lower_loss_is_not() -> None:
    result = made_up()
    result["rule"]["worse"] = "unscaled"
    for run in own(result, "unscaled"):
        for probe in run["probes"]:
            probe["gradient"] = {"first/kernel": [1.0, 0.01, 0.5]}
    assert verdict.verdict(result).passes
    lower = made_up(losses={"unscaled": [1.8] * 5})
    lower["rule"]["worse"] = "unscaled"
    assert not verdict.verdict(lower).passes


def test_a_loss_without_a_margin_is_not_judged() -> None:
    result = made_up(losses={"dynamic": [200.0] * 5})
    assert not verdict.verdict(result).passes
    only = {"metric": result["rule"]["margin"]["metric"]}
    result["rule"]["margin"] = only
    assert verdict.verdict(result).passes
    assert row(result, "dynamic").loss is None
    other = made_up(dynamic=[v - 0.06 for v in VALUES])
    other["rule"]["margin"] = only
    assert not verdict.verdict(other).passes


@pytest.mark.parametrize(
    ("scaled", "word"),
    [
        ([2.0, 2.05, 1.95, 2.1, 2.0], "passes"),  # no 2 %, and more than half of 20 %
        ([2.4] * 5, "fails"),
        ([2.3, 2.32, 2.28, 2.3, 2.31], "fails"),
        ([2.5, 1.9, 2.4, 1.9, 2.2], "undecided"),
    ],
)
def test_where_scaling_is_needed_it_must_recover_half(
    scaled: list[float], word: str
) -> None:
    low, near = [v - 0.3 for v in VALUES], [v - 0.1 for v in VALUES]
    losses = {"unscaled": [2.4] * 5, "dynamic": scaled}
    result = made_up(losses=losses, unscaled=low, constant=near, dynamic=near)
    result["rule"]["worse"] = "unscaled"
    assert verdict.verdict(result).word == word


def test_where_scaling_is_needed_the_metric_must_be_recovered_too() -> None:
    low = [v - 0.3 for v in VALUES]
    result = made_up(losses={"unscaled": [2.4] * 5}, unscaled=low, constant=low)
    result["rule"]["worse"] = "unscaled"
    judged = verdict.verdict(result)
    assert judged.word == "fails"
    assert judged.reasons[0].startswith("constant: the metric is worse")


def test_a_diverged_run_fails_whatever_it_counts() -> None:
    result = made_up()
    result["runs"][-1]["diverged"] = True
    judged = verdict.verdict(result)
    assert judged.reasons == ("dynamic: 1 of 5 runs diverged",)


def test_a_loss_that_is_not_finite_fails() -> None:
    result = made_up()
    own(result, "constant")[2]["ends"] = [None]
    judged = verdict.verdict(result)
    assert judged.reasons == ("constant: the loss is not finite in every run",)


def test_float32_must_have_learned() -> None:
    low = [0.3] * 5
    result = made_up(**dict.fromkeys(SETTINGS, low))
    wanted = f"accuracy 0.3, wanted {result['rule']['floor']}"
    judged = verdict.verdict(result)
    assert judged.reasons == (f"float32: has not learned: {wanted}",)


@pytest.mark.parametrize("value", [0.95, 0.92, None])
def test_float32_that_does_not_beat_the_trivial_model_says_nothing(
    value: float | None,
) -> None:
    result = made_up()
    result["trivial"]["value"] = value
    if value is None:
        del result["trivial"]
    judged = verdict.verdict(result)
    assert judged.undecided == ("float32: does not beat the trivial model",)


def test_missing_runs_and_missing_seeds_leave_it_undecided() -> None:
    result = made_up()
    del result["runs"][-1]
    assert verdict.verdict(result).undecided == ("24 of 25 runs are done",)
    fewer = made_up()
    fewer["rule"]["seeds"] = 8
    assert verdict.verdict(fewer).undecided == ("5 seeds, where 8 were frozen",)


def test_one_variable_of_one_setting_fails_it() -> None:
    result = made_up()
    for run in own(result, "constant"):
        run["probes"][0]["update"]["dense/bias"] = [1.0, 0.001, 0.4]
    (reason,) = verdict.verdict(result).reasons
    assert reason.startswith("constant: the update of dense/bias is off by 1 (median)")


def test_gradients_that_nobody_saw_leave_it_undecided() -> None:
    result = made_up()
    for run in own(result, "constant"):
        run["probes"] = [{"step": 0, "overflow": True}]
    judged = verdict.verdict(result)
    assert judged.undecided == ("constant: no gradient could be judged",)


def test_a_scale_that_leaves_its_rule_fails() -> None:
    result = made_up()
    own(result, "dynamic")[3]["scalers"][0]["path"] = [[0, 2.0**15]]
    (reason,) = verdict.verdict(result).reasons
    assert reason.startswith("dynamic: seed 3: the scale is 2^15 before step 2")
    broken = made_up()
    own(broken, "constant")[0]["scalers"] = []
    assert not verdict.verdict(broken).passes


def test_a_loss_below_zero_is_compared_by_difference() -> None:
    result = made_up(losses=dict.fromkeys(SETTINGS, [-0.5] * 5))
    assert not verdict.verdict(result).passes  # it has no logarithm
    result["rule"]["scale"] = 0.5
    assert verdict.verdict(result).passes


def test_a_control_is_found_only_by_what_is_shown() -> None:
    noisy = made_up(dynamic=[0.8, 1.0, 0.94, 1.0, 0.83])
    assert verdict.found(noisy)["dynamic"] == ""
    other = made_up(dynamic=[v - 0.06 for v in VALUES])
    assert "metric" in verdict.found(other)["dynamic"]
