"""`drilling`: results from before there were drills are drilled later, and alike."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
import tiny_family
from convergence_runs import made_up, ready

from amp.loss_scaling import gradients
from convergence import arms, drilling, margins, results, runner, workers
from convergence.__main__ import main
from convergence.controls import _instead
from convergence.families import FAMILIES
from convergence.runner import Options

pytestmark = [pytest.mark.slow, pytest.mark.kernels]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Results of a family that trains in a second, one seed a setting."""
    out = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        family = tiny_family.install(patch)
        patch.setitem(FAMILIES, "tiny", family)
        patch.setattr("convergence.observing.DRAWS", 2)
        options = Options(
            quick=True, emulate=True, seeds=1, out=out, frozen=ready(family, out)
        )
        yield runner.run(family, options, lambda *_: None)


def undrilled(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "drills"}


def test_what_is_drilled_later_finds_what_the_run_found(ran: dict[str, Any]) -> None:
    assert drilling.missing(ran) == drilling.outdated(ran, "tiny") == []
    earlier = undrilled(ran)
    assert drilling.missing(earlier) == ["constant", "dynamic"]
    assert drilling.later(earlier, ()) == ran["drills"]


def test_drills_of_before_their_code_was_noted_are_made_anew(
    ran: dict[str, Any],
) -> None:
    """Such a file ended the command with a KeyError."""
    first = {name: {"commit": "", "faults": []} for name in ran["drills"]}
    assert drilling.outdated({**ran, "drills": first}, "tiny") == [*first]


@pytest.mark.thorough
def test_a_fault_planted_since_is_found(ran: dict[str, Any]) -> None:
    """Gradients are scaled by what the scale was at first."""
    first = _instead(gradients.Scaling, "scale", lambda self: tf.constant(2.0**8))
    with first:
        found = drilling.later(undrilled(ran), ())
    assert found is not None
    assert found["dynamic"]["faults"]


def test_without_its_data_nothing_is_drilled() -> None:
    assert drilling.later(undrilled(made_up()), ()) is None


@pytest.mark.processes
@pytest.mark.thorough
def test_the_command_adds_what_is_missing_and_says_what_was_found(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of sound results, nothing; stale ones, without frozen margins, are left alone."""
    family = FAMILIES["wide_deep"]
    frozen = ready(family, tmp_path, wide=False)
    entry = margins.read(frozen)["wide_deep-digits_even-quick"]
    result = made_up("wide_deep") | {"data": "digits_even"}
    result["rule"] = results.rule(family, family.quick, "float16", entry)
    for arm in arms.compared():
        result["settings"][arm.name] = arm.told("float16", family.quick.steps)
    for held in (result, {**result, "data": "elsewhere"}):
        results.write(tmp_path / results.file_name(held), undrilled(held))
    assert main(["drill", "--results", str(tmp_path), "--margins", str(frozen)]) == 0
    told = capsys.readouterr().out
    name = results.file_name(result)
    assert told == f"{name}: drills of constant, dynamic find nothing\n"
    held = results.read(tmp_path / name)
    assert drilling.outdated(held, family.task) == []
    assert {**held, "drills": result["drills"]} == result
    stale = results.read(tmp_path / results.file_name({**result, "data": "elsewhere"}))
    assert "drills" not in stale


def test_faults_are_said_and_make_the_command_fail(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("convergence.staleness.reason", lambda *_: "")
    here, away = made_up(), made_up() | {"data": "elsewhere"}
    found = {"constant": {"faults": []}, "dynamic": {"faults": ["it stays"]}}
    told = [(here, found), (away, None)]
    monkeypatch.setattr(workers, "drilling", lambda wanted, _: told)
    for held in (here, away):
        results.write(tmp_path / results.file_name(held), undrilled(held))
    assert main(["drill", "--results", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "drills of constant, dynamic find 1\n  dynamic: it stays\n" in said
    assert f"{results.file_name(away)}: not drilled, its data is not here" in said
    assert results.read(tmp_path / results.file_name(here))["drills"] == found


@pytest.mark.thorough
def test_controls_are_drilled_too_and_their_faults_are_no_failure(
    ran: dict[str, Any],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with its fault planted."""
    settings = {"never_grows": ran["settings"]["dynamic"]}
    control = undrilled(ran) | {"controls": True, "settings": settings}
    found = drilling.later(control, ())
    assert found is not None
    assert any("good steps" in text for text in found["never_grows"]["faults"])
    monkeypatch.setattr("convergence.staleness.reason", lambda *_: "")
    monkeypatch.setattr(workers, "drilling", lambda *_: [(control, found)])
    out = tmp_path / "controls"
    out.mkdir()
    results.write(out / results.file_name(control), control)
    assert main(["drill", "--results", str(out)]) == 0
    assert "drills of never_grows find" in capsys.readouterr().out
    assert results.read(out / results.file_name(control))["drills"] == found
