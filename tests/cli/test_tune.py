"""`amp tune`: measures, stores, shows, and is planned from."""

from __future__ import annotations

import contextlib
import re
import signal

import pytest

from amp import cli
from amp.cli import progress_bar
from amp.integration.doctor import store
from amp.integration.measuring import (
    calibration,
    hardware,
    operation_timer,
    tune_device,
)

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
    assert re.search(r"kernels \(\d+ points\) measured by amp tune today", finding.text)
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


def test_a_short_run_keeps_what_a_longer_one_measured(cache, capsys):
    command = ["tune", "--executor", "kernels", "--seconds"]
    assert cli.main([*command, "0.6"]) == 0
    (before,) = stored("kernels")
    assert cli.main([*command, "1e-9"]) == 0  # there is no time for any case
    assert "no time was left" in capsys.readouterr().out
    assert stored("kernels") == [before]
    assert cli.main([*command, "0.1"]) == 0
    (after,) = stored("kernels")
    assert cases(after) >= cases(before)
    assert after != before
    assert cli.main(["tune", "--executor", "xla", "--seconds", "1e-9"]) == 0
    assert not stored("xla")


def stored(executor):
    return [profile for _, profile in tune_device.stored([executor])]


def cases(profile):
    return {(point.bound, point.case, point.dtype) for point in profile.points}


@pytest.fixture
def interrupted(monkeypatch):
    """Control-C comes when some cases are done."""

    @contextlib.contextmanager
    def progress(at):
        def show(case, done, total):
            if done == min(at, total):
                raise KeyboardInterrupt

        yield show

    def after(cases):
        monkeypatch.setattr(progress_bar, "progress_bar", lambda: progress(cases))

    return after


def test_what_was_measured_before_an_interruption_is_kept(cache, capsys, interrupted):
    interrupted(6)
    command = ["tune", "--executor", "kernels", "--seconds", "20"]
    assert cli.main(command) == 128 + signal.SIGINT
    told = capsys.readouterr()
    assert "what was measured so far is kept" in told.out
    assert "amp: interrupted" in told.err
    (kept,) = stored("kernels")
    assert 0 < len({point.case for point in kept.points}) <= 6


def test_tune_needs_time(cache, capsys):
    assert cli.main(["tune", "--seconds", "0"]) == 2
    assert "no time to measure in" in capsys.readouterr().err
    assert not list(cache.iterdir())


def test_what_is_stored_is_that_of_a_device(cache, graph, capsys):
    assert cli.main(["tune", "--show", "--saved-model", str(graph / "saved")]) == 2
    assert "--show was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--saved-model", "saved", "--executor", "xla"], "--executor was given with"),
        (["--show", "--library", "ops.so"], "--library was given without"),
        (["--saved-model", "saved", "--library", "ops.so"], "there is no such file"),
    ],
)
def test_no_flag_is_ignored(cache, graph, args, found, capsys, monkeypatch):
    monkeypatch.chdir(graph)
    assert cli.main(["tune", *args]) == 2
    told = capsys.readouterr().err
    assert found in told
    assert "do now:" in told
