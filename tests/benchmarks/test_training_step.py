"""The driver: modes interleaved, failures survived, results whole after every run."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from timed_runs import results, run

from benchmarks import bench_models, summary, table, training_step


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMP_ENABLE", "AMP_DTYPE", "AMP_CACHE_DIR", "AMP_MIN_GAIN"):
        monkeypatch.delenv(name, raising=False)


def parsed(*options: str) -> argparse.Namespace:
    return training_step._parser().parse_args(options)


class Workers:
    """Stands in for `program`: remembers what it was asked, answers by mode."""

    def __init__(self, failing: str = "", interrupted_at: int = -1) -> None:
        self.asked: list[tuple[list[str], dict[str, str]]] = []
        self.failing, self.interrupted_at = failing, interrupted_at

    def __call__(
        self, name: str, options: list[str], variables: dict[str, str], timeout: float
    ) -> dict[str, Any]:
        if name == "machine":
            return results()["machine"]
        if len(self.asked) == self.interrupted_at:
            raise KeyboardInterrupt
        self.asked.append((options, dict(variables)))
        mode = options[options.index("--mode") + 1]
        if mode == self.failing:
            return {"error": "ValueError: no"}
        names = ("case", "executor", "mode", "round")
        return {k: v for k, v in run(mode).items() if k not in names}


QUICK = ("--models", "mlp", "--executors", "kernels", "--rounds", "2")


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "deep/results.json"


def driven(
    monkeypatch: pytest.MonkeyPatch, workers: Workers, output: pathlib.Path, *more: str
) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(training_step, "program", workers)
    code = training_step.main([*QUICK, "--output", str(output), *more])
    return code, json.loads(output.read_text())


def test_modes_follow_one_another_and_each_round_begins_with_another() -> None:
    modes, executors = training_step.MODES, training_step.EXECUTORS
    plan = list(training_step.schedule(["a", "b"], executors, modes, 4))
    assert len(plan) == len(set(plan)) == 4 * 2 * 2 * 4
    for start in range(0, len(plan), 4):  # all modes of a case without a break
        group = plan[start : start + 4]
        assert len({(number, key[:2]) for number, key in group}) == 1
        assert {key[2] for _, key in group} == set(modes)
    assert {plan[start][1][2] for start in range(0, len(plan), 16)} == set(modes)


@pytest.mark.usefixtures("options")
def test_results_hold_every_run_and_pages_are_written(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    code, found = driven(monkeypatch, Workers(), output, "--note", "Busy.")
    assert code == 0
    assert found["settings"]["note"] == "Busy."
    keys = {(r["case"], r["executor"], r["mode"], r["round"]) for r in found["runs"]}
    assert len(keys) == len(found["runs"]) == 8
    assert found["settings"]["dtype"] == "bfloat16"
    assert "| mlp " in output.with_suffix(".md").read_text()
    assert output.with_suffix(".svg").exists()
    assert not list(output.parent.glob(".*"))


@pytest.mark.usefixtures("options")
def test_only_the_plugins_runs_are_switched_on(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    monkeypatch.setenv("AMP_MIN_GAIN", "0")
    monkeypatch.delenv("AMP_TUNE_BUDGET", raising=False)  # of the test suite
    workers = Workers()
    driven(monkeypatch, workers, output, "--dtype", "float16")
    for options, variables in workers.asked:
        wanted = {"AMP_ENABLE": "1", "AMP_DTYPE": "float16", "AMP_MIN_GAIN": "0"}
        assert variables == (wanted if "amp" in options else {})
        assert options[options.index("--dtype") + 1] == "float16"


@pytest.mark.usefixtures("options")
def test_a_mode_that_fails_is_a_line_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    output: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = driven(monkeypatch, Workers(failing="keras"), output)
    assert code == 0
    assert [r["mode"] for r in found["runs"] if "error" in r] == ["keras"]
    assert len(found["runs"]) == 7  # what failed is not tried again
    assert "mlp, kernels, Keras policy: ValueError: no" in capsys.readouterr().out
    (row,) = summary.rows(found["runs"])
    assert row.gain("amp") == 1.0


@pytest.mark.usefixtures("options")
def test_an_interrupted_run_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    code, found = driven(monkeypatch, Workers(interrupted_at=5), output)
    assert code == 130
    assert len(found["runs"]) == 5
    assert "| mlp " in output.with_suffix(".md").read_text()


@pytest.mark.usefixtures("options")
def test_memory_cases_and_networks_of_others_come_when_asked() -> None:
    cases = training_step.chosen(parsed("--models", "mlp", "--memory"))
    assert cases == ["mlp", "resnet50 memory", "unet memory"]
    cases = training_step.chosen(parsed("--models", "mlp", "--applications"))
    assert cases == ["mlp", *bench_models.APPLICATIONS]
    assert training_step.chosen(parsed()) == [*bench_models.CASES]


@pytest.mark.usefixtures("options")
def test_a_report_is_drawn_again_without_a_run(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    driven(monkeypatch, Workers(), output)
    page = output.with_suffix(".md").read_text()
    output.with_suffix(".md").unlink()
    shown_on = output.parent / "comparison.md"
    shown_on.write_text("\n".join(table.marks(output.stem)))
    monkeypatch.setattr(training_step, "program", None)
    asked = ["--report-only", str(output), "--page", str(shown_on)]
    assert training_step.main(asked) == 0
    assert output.with_suffix(".md").read_text() == page
    assert "](results.svg)" in shown_on.read_text()


@pytest.mark.usefixtures("options")
def test_a_machine_that_cannot_be_asked_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"error": "ImportError: no"}
    monkeypatch.setattr(training_step, "program", lambda *_: broken)
    with pytest.raises(SystemExit, match="could not be asked: ImportError: no"):
        training_step.main([])


def test_results_have_a_line_a_run() -> None:
    for runs in ([], [run()], [run(), run("amp")]):
        text = training_step.as_json(results(*runs))
        assert json.loads(text) == results(*runs)
        assert sum('"seconds": 1.0' in line for line in text.splitlines()) == len(runs)


def test_two_machines_write_two_files() -> None:
    one, other = results(), results()
    other["machine"]["gpu"] = "NVIDIA H200"
    names = [training_step.default_output(r, quick=False).name for r in (one, other)]
    assert names == ["a_cpu_2_cores_bfloat16.json", "nvidia_h200_bfloat16.json"]
    assert "results" not in training_step.default_output(one, quick=True).parts


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
    assert training_step.program("worker", [], {}, timeout) == found


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
    assert training_step.program("worker", [], given, 60.0) == given


def test_the_cause_of_an_error_is_its_own_line() -> None:
    text = "Traceback:\n  x\ntensorflow.errors.Fatal\nfoo.BarError: bad\n  more below\n"
    assert training_step.cause(text) == "foo.BarError: bad"
    assert training_step.cause("only this\n") == "only this"
    assert training_step.cause("") == ""
