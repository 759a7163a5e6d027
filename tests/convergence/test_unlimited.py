"""Where float32's own noise is not finite nothing passes for want of a limit."""

from __future__ import annotations

from typing import Any

import pytest
from convergence_runs import made_up

from convergence import judge, unlimited


def runs(kind: str, error: float | None, noise: float | None) -> list[dict[str, Any]]:
    sound = {"gradient": {"v": [0.01, 0.01, 0.9, 0.1]}}
    probe = {"step": 4, kind: {"w": [error, noise, 0.3, 0.1]}}
    return [{"probes": [{"step": 9, "overflow": True}, {"step": 3, **sound}, probe]}]


@pytest.mark.parametrize("kind", ["gradient", "update"])
@pytest.mark.parametrize("error", [None, 0.5])
def test_what_has_no_limit_is_undecided(kind: str, error: float | None) -> None:
    found = unlimited.finding(runs(kind, error, None))
    assert (found.clause, found.outcome) == ("limits", "undecided")
    assert found.text.startswith(f"the {kind} of w at step 4 has no limit")


@pytest.mark.parametrize("error", [None, 0.5])
def test_what_has_a_limit_is_left_to_the_rule(error: float | None) -> None:
    assert unlimited.finding(runs("gradient", error, 0.1)).outcome == "equal"


def test_a_family_is_undecided_by_it() -> None:
    """By the rule alone an infinite error passes there."""
    result = made_up()
    for run in result["runs"]:
        if run["setting"] == "dynamic":
            for probe in run["probes"]:
                for seen in probe.get("gradient", {}).values():
                    seen[0] = seen[1] = None
    judged = judge.judged(result)
    assert judged.word == "undecided"
    assert any("has no limit" in text for text in judged.undecided)
