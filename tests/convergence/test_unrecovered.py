"""Recovery passes what is too noisy to be equal, and never what is different."""

from __future__ import annotations

from typing import Any

import pytest
from convergence_runs import made_up

from convergence import judge, unrecovered, verdict

NOISY = [2.4, 1.7, 2.2, 1.6, 2.1]
LOST = [3.0, 2.9, 3.1, 3.0, 2.9]
HIGHER = [2.3, 2.3001, 2.3, 2.2999, 2.3]


def needing_scaling(**losses: list[float]) -> dict[str, Any]:
    result = made_up(losses={"unscaled": LOST} | losses)
    result["rule"]["worse"] = "unscaled"
    return result


def test_what_is_noisy_and_recovered_passes() -> None:
    result = needing_scaling(dynamic=NOISY)
    assert unrecovered.finding(result, "dynamic").outcome == "equal"
    assert judge.judged(result).reasons == ()


@pytest.mark.parametrize(
    ("setting", "word"), [("dynamic", "fails"), ("perturbed", "undecided")]
)
def test_what_is_different_stays_so_though_half_is_recovered(
    setting: str, word: str
) -> None:
    """A seventh more loss, where without scaling there is half as much again."""
    result = needing_scaling(**{setting: HIGHER})
    assert verdict.verdict(result).passes
    judged = judge.judged(result)
    assert judged.word == word
    told = judged.reasons if word == "fails" else judged.undecided
    (text,) = told
    assert text.startswith(f"{setting}: the interval of the loss, ")


def test_without_a_finite_loss_there_is_no_yardstick() -> None:
    result = needing_scaling(dynamic=NOISY)
    for run in result["runs"]:
        if run["setting"] == "unscaled":
            run["ends"], run["diverged"] = [None], True
    assert verdict.verdict(result).passes
    judged = judge.judged(result)
    assert judged.word == "undecided"
    (text,) = judged.undecided
    assert text.endswith("nothing shows what is lost without scaling")


def test_other_families_and_the_settings_compared_with_are_left_alone() -> None:
    different = {"dynamic": HIGHER}
    assert unrecovered.finding(made_up(losses=different), "dynamic").outcome == "equal"
    result = needing_scaling(float32=HIGHER)
    for setting in ("float32", "unscaled"):
        assert unrecovered.finding(result, setting).outcome == "equal"
