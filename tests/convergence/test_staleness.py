"""Results count while the rule, the margins, the code and the plans are theirs."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from convergence_runs import made_up, ready, small

from amp.graph_rewrite.cost import shipped_devices
from amp.integration.measuring import hardware
from convergence import audit, margins, replanning, runner, settings, staleness
from convergence.families import FAMILIES

NAME = "resnet-none-quick"


def never(result: Mapping[str, Any]) -> None:
    raise AssertionError("nothing is to be planned")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """Margins with the tag that `made_up` results have."""
    result, path = made_up(), tmp_path / "margins.json"
    row = margins.row(FAMILIES["resnet"], FAMILIES["resnet"].quick)
    entry = {"tag": result["rule"]["tag"], "rule": audit.rule(), "row": row}
    margins.freeze(NAME, entry | {"frozen": "2000-01-01T00:00:00+00:00"}, path)
    return path


def test_results_of_the_code_at_hand_are_counted(file: pathlib.Path) -> None:
    assert staleness.reason(made_up(), never, file) == ""


def test_an_earlier_protocol_is_not(file: pathlib.Path) -> None:
    assert staleness.reason({"family": "resnet"}, never, file) == (
        "of an earlier protocol"
    )


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"tag": "another"}, "not those frozen"),
        ({"rule": "another"}, "the rule has changed"),
        ({"frozen": "2999-01-01T00:00:00+00:00"}, "begun before"),
        ({"row": "another"}, "the family's row has changed"),
    ],
)
def test_margins_are_frozen_first_and_stay(
    entry: dict[str, str], says: str, file: pathlib.Path
) -> None:
    margins.freeze(NAME, margins.read(file)[NAME] | entry, file)
    assert says in staleness.reason(made_up(), never, file)
    assert "not those frozen" in staleness.reason(made_up(), never, file / "none")


def test_what_results_hold_of_the_rule_is_what_is_known(file: pathlib.Path) -> None:
    margin = {"margin": made_up()["rule"]["margin"]}
    margins.freeze(NAME, margins.read(file)[NAME] | margin, file)
    assert staleness.reason(made_up(), never, file) == ""
    for key, value in {"margin": {}, "floor": 0.0, "unit": 1.0}.items():
        result = made_up()
        result["rule"] = result["rule"] | {key: value}
        says = staleness.reason(result, never, file)
        assert says == f"they hold another {key} than is known"
    for key, value in {"must_pass": False, "scaling": None}.items():
        result = made_up()
        result["settings"]["dynamic"] = result["settings"]["dynamic"] | {key: value}
        says = staleness.reason(result, never, file)
        assert says == "they hold another dynamic than is known"


def test_the_loop_that_runs_are_made_by_stays(file: pathlib.Path) -> None:
    result = made_up()
    result["code"] = result["code"] | {"suite": "another"}
    assert staleness.reason(result, never, file).startswith("the training loop")


def test_another_package_counts_if_its_steps_are_the_same(
    file: pathlib.Path,
) -> None:
    result = made_up()
    result["code"] = result["code"] | {"package": "another"}
    plans = dict.fromkeys(result["settings"], "p")
    assert staleness.reason(result, lambda _: plans, file) == ""
    plans["dynamic"] = "q"
    says = staleness.reason(result, lambda _: plans, file)
    assert says == "the step or its plan has changed since (dynamic)"
    assert "not here" in staleness.reason(result, lambda _: None, file)


@pytest.mark.slow
@pytest.mark.kernels
def test_a_step_that_is_planned_anew_has_the_digest_that_its_run_had(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = small("wide_deep", steps=8)
    monkeypatch.setitem(FAMILIES, "wide_deep", family)
    monkeypatch.setattr(settings, "SETTINGS", ("float32", "unscaled", "constant"))
    monkeypatch.setattr("convergence.observing.DRAWS", 2)
    monkeypatch.setattr(runner._Runs, "_drill", lambda *_: None)
    options = runner.Options(
        quick=True, emulate=True, seeds=1, out=tmp_path, frozen=ready(family, tmp_path)
    )
    result = runner.run(family, options, lambda *told: None)
    known = {run["setting"]: run["plan"] for run in result["runs"]}
    assert replanning.replan(result, ()) == known
    assert len({known[name] for name in ("unscaled", "constant")}) == 2
    assert replanning.replan(result | {"data": "another"}, ()) is None


def test_a_step_is_planned_for_the_cpu_that_ran_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On whatever CPU that is: kernels that round more leave more in float32."""

    def planned(*_: Any) -> dict[str, str]:
        return {"device": hardware.device().name}

    monkeypatch.setattr(replanning, "_planned", planned)
    here = hardware.device()
    for flags in ([], ["avx512f"], ["avx512f", "avx512_bf16"], ["amx_bf16"]):
        result = made_up() | {"data": "digits", "machine": {"flags": flags}}
        name = shipped_devices.of_cpu(frozenset(flags)).name
        assert replanning.replan(result, ()) == {"device": name}
    on_gpu = {"flags": ["amx_bf16"], "gpu": "NVIDIA H200"}
    result = made_up() | {"data": "digits", "machine": on_gpu}
    assert replanning.replan(result, ()) == {"device": shipped_devices.H200.name}
    assert hardware.device() == here
