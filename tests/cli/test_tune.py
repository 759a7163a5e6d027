"""`amp tune`: measures, stores, shows, and is planned from."""

from __future__ import annotations

import pytest

from amp import cli
from amp.integration.doctor import store
from amp.integration.measuring import calibration, hardware, operation_timer

pytestmark = pytest.mark.kernels


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, forgotten afterwards."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    hardware.device.cache_clear()
    yield tmp_path
    hardware.device.cache_clear()


def test_tune_stores_shows_and_is_planned_from(cache, capsys):
    command = ["tune", "--executor", "kernels"]
    assert cli.main([*command, "--show"]) == 0
    assert "amp tune measures it" in capsys.readouterr().out
    assert cli.main([*command, "--seconds", "0.5"]) == 0
    told = capsys.readouterr()
    (file,) = (cache / "profiles").iterdir()
    assert f"stored in {file}" in told.out
    assert "AddV2 8 8" in told.out
    assert "calibrated" in hardware.device().name
    assert cli.main([*command, "--show"]) == 0
    assert capsys.readouterr().out == told.out
    (finding,) = store.profile()
    assert "kernels measured by amp tune today" in finding.text
    assert cli.main(["tune", "--executor", "xla", "--show"]) == 0
    assert "nothing of this device" in capsys.readouterr().out


def test_on_a_phone_no_line_is_wider_than_the_screen(cache, capsys, monkeypatch):
    command = ["tune", "--executor", "kernels"]
    assert cli.main([*command, "--seconds", "0.5"]) == 0
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main([*command, "--show"]) == 0
    told = capsys.readouterr().out
    table = told[told.index("\n") : told.index("stored in")]
    assert max(map(len, table.splitlines())) <= 40
    assert max(map(len, wide.splitlines()[1:])) > 40
    assert "  float32 " in table


@pytest.mark.parametrize("what", [[], ["--saved-model"]])
def test_what_cannot_be_stored_is_not_measured(cache, graph, capsys, monkeypatch, what):
    (cache / "profiles").touch()  # a file is where the directory should be

    def measured(*args, **kwargs):
        raise AssertionError("it was measured")

    monkeypatch.setattr(calibration, "calibrate", measured)
    monkeypatch.setattr(operation_timer, "measure", measured)
    command = [*what, str(graph / "saved")] if what else []
    assert cli.main(["tune", *command]) == 2
    told = capsys.readouterr().err
    assert told.startswith("amp: ProfileError: what is measured could not be stored")
    assert "set AMP_CACHE_DIR to one" in told


def test_tune_needs_time(cache, capsys):
    assert cli.main(["tune", "--seconds", "0"]) == 2
    assert "no time to measure in" in capsys.readouterr().err
    assert not list(cache.iterdir())


def test_what_is_stored_is_that_of_a_device(cache, graph, capsys):
    assert cli.main(["tune", "--show", "--saved-model", str(graph / "saved")]) == 2
    assert "--show was given" in capsys.readouterr().err
