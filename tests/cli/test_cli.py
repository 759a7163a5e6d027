"""The table of commands: help, usage errors, and one file a command."""

from __future__ import annotations

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from amp import cli
from amp.policy import FIELDS

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.processes
def test_help_needs_no_tensorflow(tmp_path):
    code = (
        "import sys; from amp import cli\ntry: cli.main(['run', '--help'])\n"
        "except SystemExit: print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert done.stdout.endswith("False\n")
    for field in FIELDS.values():
        assert f"{field.flag} VALUE" in done.stdout


def test_without_a_command_it_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert "usage: amp" in capsys.readouterr().err


def test_python_runs_the_room_as_the_command(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "amp.cli.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["amp", "explain", "nowhere.pb"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("amp.cli", run_name="__main__")
    assert caught.value.code == 2
    assert "there is no such file" in capsys.readouterr().err


def test_each_command_is_a_file_and_says_in_its_help_what_it_does(capsys):
    shared = {"__init__", "__main__", "command", "policy_flags", "progress_bar"}
    files = {path.stem for path in (ROOT / "amp/cli").glob("*.py")}
    assert files - shared == cli.COMMANDS.keys()
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"{name:<9} {command.help}" in told
