"""A scale that changes no bit, where bits are lost without it, is not applied."""

from __future__ import annotations

from typing import Any

import pytest
from convergence_runs import made_up

from convergence import effect
from convergence.effect import LEAST


def lost(share: float, **losses: float) -> dict[str, Any]:
    """Results whose gradients have this share of denormals, with losses by setting."""
    settings = ("unscaled", "constant", "dynamic")
    result = made_up(losses={s: [losses.get(s, 2.0)] * 5 for s in settings})
    for run in result["runs"]:
        run["losses"] = [[3.0, 2.0]]
        for probe in run["probes"]:
            probe["lost"] = {"kernel": [0.0, share], "bias": [0.0, share]}
    return result


def found(result: dict[str, Any]) -> dict[str, str]:
    each = {name: effect.finding(result, name) for name in result["settings"]}
    assert all((f.outcome == "different") == bool(f.text) for f in each.values())
    return {name: f.text for name, f in each.items() if f.text}


def test_runs_that_are_those_without_a_scale_have_none() -> None:
    told = found(lost(2 * LEAST))
    assert list(told) == ["constant", "dynamic"]
    for text in told.values():
        assert "those of unscaled to the last bit, where 0.1% of" in text


def test_two_scales_that_do_the_same_do_nothing() -> None:
    """The graph without a scale may be planned otherwise, and differ for that."""
    told = found(lost(2 * LEAST, unscaled=2.1))
    assert list(told) == ["dynamic"]
    assert "those of constant to the last bit" in told["dynamic"]


@pytest.mark.parametrize("share", [0.0, LEAST / 2])
def test_where_nothing_is_lost_runs_may_be_the_same(share: float) -> None:
    assert found(lost(share)) == {}


def test_one_bit_in_one_run_is_an_effect() -> None:
    result = lost(2 * LEAST, unscaled=2.1, constant=2.2)
    assert found(result) == {}
    result = lost(2 * LEAST)
    for run in result["runs"]:
        if run["seed"] == 3:
            run["ends"] = [2.0 + len(run["setting"]) * 1e-9]
    result["runs"] = [r for r in result["runs"] if r["setting"] != "constant"]
    assert found(result) == {}


def test_runs_of_no_common_seed_tell_nothing() -> None:
    result = lost(2 * LEAST)
    for run in result["runs"]:
        run["seed"] += {"constant": 10, "dynamic": 20}.get(run["setting"], 0)
    assert found(result) == {}


def test_faults_are_held_against_sound_settings_alone() -> None:
    """Two faults that do not show are the same runs, and neither is found for that."""
    result = lost(2 * LEAST, unscaled=2.1)
    faults = {"constant": "not_skipped", "dynamic": "never_backs_off"}
    told = result["settings"]
    result["settings"] = {faults.get(name, name): told[name] for name in told}
    for run in result["runs"]:
        run["setting"] = faults.get(run["setting"], run["setting"])
    assert found(result) == {}
    for run in result["runs"]:
        run["ends"] = [2.0]
    assert list(found(result)) == list(faults.values())
