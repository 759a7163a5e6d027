"""First steps are compared on equal terms, and say on what machine."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from benchmarks import first_step, phases, processes


class Processes:
    """Stands in for `program`: remembers what it was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    def __call__(
        self, name: str, options: list[str], variables: dict[str, str], timeout: float
    ) -> dict[str, Any]:
        if name == "machine":
            return {"cpu": "A CPU", "versions": {"tensorflow": "2.21.0"}}
        self.asked.append((options[options.index("--worker") + 1], variables))
        return {
            "seconds": 1.0,
            "phases": {first_step.TRACING: 1.0},
            "second": 1.0,
            "nodes": 3,
            "trial": "",
        }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Processes:
    stand_in = Processes()
    monkeypatch.setattr(processes, "program", stand_in)
    return stand_in


def test_no_variable_of_the_user_makes_float32_mixed(
    monkeypatch: pytest.MonkeyPatch, asked: Processes
) -> None:
    monkeypatch.setenv("AMP_ENABLE", "1")
    monkeypatch.setenv("AMP_MIN_GAIN", "0")
    first_step.main(["--rounds", "1"])
    found = dict(asked.asked)
    assert found["float32"] == {}
    for mode in ("cold", "warm"):
        assert found[mode]["AMP_MIN_GAIN"] == "0"
        assert "AMP_ENABLE" not in found[mode]
    assert found["cold"]["AMP_CACHE_DIR"] == found["warm"]["AMP_CACHE_DIR"]


def test_float32_is_first_in_one_round_and_last_in_the_next(asked: Processes) -> None:
    first_step.main(["--rounds", "2"])
    modes = [mode for mode, _ in asked.asked]
    assert modes == ["float32", "cold", "warm", "cold", "warm", "float32"]


@pytest.mark.usefixtures("asked")
def test_the_json_tells_the_machine_and_versions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first_step.main(["--rounds", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["machine"]["versions"] == {"tensorflow": "2.21.0"}


def test_a_process_that_fails_ends_it_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"error": "ImportError: no"}
    monkeypatch.setattr(processes, "program", lambda *_: broken)
    with pytest.raises(SystemExit, match="machine: ImportError: no"):
        first_step.main([])


def test_what_the_collector_takes_is_a_phase_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chance puts a full round in one process and not in another: not in "tracing"."""
    callbacks: list[Any] = []
    monkeypatch.setattr(gc, "callbacks", callbacks)
    clock = iter([0.0, 1.0, 4.0, 10.0])
    watch = phases.Phases(lambda: next(clock))
    watch.watch_collector("garbage collection")
    (told,) = callbacks
    told("stop", {})  # one that was under way
    with watch.phase("tracing"):
        told("start", {})
        told("stop", {})
    assert watch.seconds == {"tracing": 7.0, "garbage collection": 3.0}
