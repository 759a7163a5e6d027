"""Every planted fault is found by the rule, and one that is none is not.

On the family of `tiny_family`, which trains in a second; the suite's own families run
the same controls with `python -m convergence controls`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tiny_family
from convergence_runs import ready

from amp.loss_scaling import gradients, update
from convergence import controls, judge, results, runner, verdict
from convergence.controls import CONTROLS, Control

SOUND = Control("sound", "nothing is wrong")
# The clauses that have to see a fault here; others may see it too. What drills see of
# them is tested where drills are.
CLAUSES = {
    "not_scaled": {"gradients", "effect"},
    "not_removed": {"gradients", "loss"},
    "never_grows": {"scale"},
    "not_skipped": {"scale"},
    "never_backs_off": {"scale", "loss", "metric"},
    "zeroed": {"gradients"},
    "updates_in_16_bits": {"gradients"},
}


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, verdict.Row]]:
    out = tmp_path_factory.mktemp("controls")
    with pytest.MonkeyPatch.context() as patch:
        family = tiny_family.install(patch)
        patch.setattr(controls, "CONTROLS", {"sound": SOUND, **CONTROLS})
        patch.setattr(runner._Runs, "_drill", lambda *_: None)
        patch.setattr("convergence.observing.DRAWS", 3)
        frozen = ready(family, out, wide=False)
        options = runner.Options(
            quick=True, emulate=True, seeds=3, out=out, frozen=frozen
        )
        result = runner.control(family, options, lambda *told: None)
        yield {row.setting: row for row in judge.rows(result)}


def clauses(row: verdict.Row) -> set[str]:
    return {f.clause for f in row.findings if f.outcome == "different"}


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("name", CONTROLS)
def test_a_planted_fault_is_found(name: str, planted: dict[str, verdict.Row]) -> None:
    assert clauses(planted[name]) >= CLAUSES[name], planted[name].reasons


@pytest.mark.slow
@pytest.mark.kernels
def test_what_has_no_fault_is_not_found(planted: dict[str, verdict.Row]) -> None:
    """Its scale does back off and grow, or the test would say nothing of scales."""
    assert clauses(planted["sound"]) == set(), planted["sound"].reasons
    grown, backed_off = planted["sound"].moves
    assert min(grown, backed_off) > 0


@pytest.mark.parametrize("control", CONTROLS.values(), ids=list(CONTROLS))
def test_a_fault_is_gone_with_its_scope(control: Control) -> None:
    owners = (gradients, gradients.Scaling, update, keras.optimizers.Optimizer)
    before = [dict(vars(owner)) for owner in owners]
    with control.planted():
        pass
    assert [dict(vars(owner)) for owner in owners] == before


def test_every_control_has_a_test() -> None:
    assert set(CLAUSES) == set(CONTROLS)


@pytest.mark.slow
@pytest.mark.kernels
def test_sound_runs_are_taken_from_the_results_of_the_settings(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = tiny_family.install(monkeypatch)
    options = runner.Options(
        quick=True, emulate=True, seeds=2, out=tmp_path, frozen=ready(family, tmp_path)
    )
    runs: list[tuple[Any, ...]] = []
    monkeypatch.setattr(runner.settings, "SETTINGS", ("float32", "unscaled"))
    monkeypatch.setattr(controls, "CONTROLS", {})
    monkeypatch.setattr(runner._Runs, "_drill", lambda *_: None)
    runner.run(family, options, lambda *told: runs.append(told))
    before = len(runs)
    borrowed = runner.control(family, options, lambda *told: runs.append(told))
    assert len(runs) == before > 0
    (held,) = [r for r in results.every(tmp_path) if not r["controls"]]
    assert borrowed["runs"] == held["runs"]
