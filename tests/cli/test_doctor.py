"""`amp doctor`: for a person, on a phone, for programs, and for scripts."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from amp import cli
from amp.integration.doctor import checkup
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding

ROOT = pathlib.Path(__file__).parents[2]
FINE = [Finding("hooks", OK, "31 patched"), Finding("profile", NOTE, "none", "tune")]
FAULT = Finding(
    "variables", WRONG, "AMP_DTPYE is no variable", "set AMP_DTYPE", {"unknown": ["x"]}
)


@pytest.fixture
def found(monkeypatch):
    def are(*findings):
        monkeypatch.setattr(checkup, "findings", lambda: iter(findings))

    return are


def test_what_is_only_worth_knowing_is_no_fault(found, capsys):
    found(*FINE)
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == (
        "hooks       ok: 31 patched\n"
        "profile     note: none\n"
        "            -> tune\n"
        "\n"
        "Nothing is wrong.\n"
    )


def test_one_fault_is_exit_code_one_and_named_at_the_end(found, capsys):
    found(*FINE, FAULT)
    assert cli.main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "variables   WRONG: AMP_DTPYE is no variable\n" in told
    assert told.endswith("Wrong: variables. Each says above what to do.\n")


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(found, capsys, monkeypatch, columns):
    text = "TensorFlow asks the CPU, not oneDNN, whether it has kernels " * 4
    found(Finding("self_test", OK, text + "/a" * 90), FAULT)
    monkeypatch.setenv("COLUMNS", str(columns))
    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("self-test")
    assert (lines[0] == "self-test") == (columns < 60)
    whole = [line for line in lines if "/a/a" not in line]
    assert max(map(len, lines if columns < 60 else whole)) <= min(columns, 100)


def test_json_has_all_that_was_found_and_nothing_else_is_printed(found, capsys):
    found(*FINE, FAULT)
    assert cli.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["status"] == "wrong"
    assert [one["check"] for one in told["findings"]] == [
        *("hooks", "profile", "variables")
    ]
    assert told["findings"][2] == {
        "check": "variables",
        "status": "wrong",
        "text": "AMP_DTPYE is no variable",
        "remedy": "set AMP_DTYPE",
        "facts": {"unknown": ["x"]},
    }


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.kernels
def test_on_this_machine_every_check_is_made_and_prints_as_json(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "AMP_CACHE_DIR": str(tmp_path / "cache"),
        "AMP_DTPYE": "float16",
    }
    done = subprocess.run(
        [sys.executable, "-O", "-m", "amp", "doctor", "--json"],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    findings = json.loads(done.stdout)["findings"]
    status = {one["check"]: one["status"] for one in findings}
    names = [
        "versions",
        "variables",
        "start",
        "cache",
        *(c.name for c in checkup.CHECKS),
    ]
    assert [one for one in names if one not in status] == []
    assert {n for n, s in status.items() if s == "wrong"} - {"onednn", "gpu"} == {
        "variables"
    }
    assert not list(tmp_path.iterdir())
