"""Processes of a benchmark: what they are given, and what is said where they fail."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks import processes


def stand_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets workers be another program."""
    original = subprocess.run

    def other(command: list[str], **options: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "benchmarks.worker"]
        return original([sys.executable, "-c", text], **options)

    monkeypatch.setattr(subprocess, "run", other)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("print('noise'); print('{\"seconds\": 1}')", {"seconds": 1}),
        ("import sys; sys.exit('not installed')", {"error": "not installed"}),
        ("raise ValueError('no')", {"error": "ValueError: no"}),
        ("import sys; sys.exit(3)", {"error": "exit code 3"}),
        ("import os; os.kill(os.getpid(), 9)", {"error": "ended by signal 9"}),
        ("import time; time.sleep(60)", {"error": "stopped after 1 s"}),
    ],
)
def test_a_worker_that_fails_says_why(
    text: str, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(text, monkeypatch)
    timeout = 1.0 if "sleep" in text else 60.0
    assert processes.program("worker", [], {}, timeout) == found


def test_a_worker_sees_no_variable_of_the_plugin_that_it_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AMP_ENABLE", "1")
    stand_in(
        "import json, os; print(json.dumps("
        "{k: v for k, v in os.environ.items() if k.startswith('AMP_')}))",
        monkeypatch,
    )
    given = {"AMP_DTYPE": "auto"}
    assert processes.program("worker", [], given, 60.0) == given


def test_the_cause_of_an_error_is_its_own_line() -> None:
    text = "Traceback:\n  x\ntensorflow.errors.Fatal\nfoo.BarError: bad\n  more below\n"
    assert processes.cause(text) == "foo.BarError: bad"
    assert processes.cause("only this\n") == "only this"
    assert processes.cause("") == ""
