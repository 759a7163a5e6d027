"""The driver: modes interleaved, failures survived, results whole after every run."""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import sys
from typing import Any

import pytest
from timed_runs import results, run

from benchmarks import (
    bench_models,
    processes,
    result_files,
    summary,
    table,
    training_step,
)


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
    monkeypatch.setattr(processes, "program", workers)
    code = training_step.main([*QUICK, "--output", str(output), *more])
    return code, json.loads(output.read_text(encoding="utf-8"))


def test_modes_follow_one_another_and_each_round_begins_with_another() -> None:
    modes, executors = summary.MODES, summary.EXECUTORS
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
    assert "| mlp " in output.with_suffix(".md").read_text(encoding="utf-8")
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
        variables.pop("AMP_CACHE_DIR", None)  # tested below
        wanted = {"AMP_ENABLE": "1", "AMP_DTYPE": "float16", "AMP_MIN_GAIN": "0"}
        assert variables == (wanted if "amp" in options else {})
        assert options[options.index("--dtype") + 1] == "float16"


def caches(workers: Workers) -> list[str]:
    """Those that the plugin's runs were given, in their order."""
    return [found["AMP_CACHE_DIR"] for _, found in workers.asked if found]


@pytest.mark.usefixtures("options")
def test_the_rounds_of_a_case_share_a_cache_that_is_new_and_goes(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    workers = Workers()
    more = ("--models", "mlp", "unet", "--executors", "kernels", "xla")
    _, found = driven(monkeypatch, workers, output, *more)
    used = caches(workers)
    assert used[:4] == used[4:]  # the second round
    assert len(set(used)) == 4  # cases and executors
    assert not any(pathlib.Path(cache).parent.exists() for cache in used)
    assert found["settings"]["cache"] == "empty"
    assert all(r["first_run"] == (r["round"] == 0) for r in found["runs"])
    driven(monkeypatch, workers, output, *more, "--force")
    assert not set(used) & set(caches(workers)[8:])


@pytest.mark.usefixtures("options")
def test_the_users_own_cache_is_recorded_and_tells_no_first_run(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", "/mine")
    workers = Workers()
    _, found = driven(monkeypatch, workers, output)
    assert caches(workers) == ["/mine"] * 2
    assert found["settings"]["cache"] == "given"
    assert found["settings"]["variables"]["AMP_CACHE_DIR"] == "/mine"
    assert not any("first_run" in r for r in found["runs"])


@pytest.mark.usefixtures("options")
def test_results_hold_the_sizes_of_their_cases(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    _, found = driven(monkeypatch, Workers(), output, "--quick")
    batch, sizes = bench_models.CASES["mlp"].arguments(quick=True)
    (case,) = found["settings"]["cases"].items()
    assert case[0] == "mlp"
    assert (case[1]["batch"], case[1]["sizes"]["features"]) == (
        batch,
        sizes["features"],
    )


@pytest.mark.usefixtures("options")
def test_a_faster_device_gets_larger_batches_in_every_mode(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    workers = Workers()
    _, found = driven(monkeypatch, workers, output, "--batch-factor", "3")
    (case,) = found["settings"]["cases"].values()
    assert case["batch"] == 3 * bench_models.CASES["mlp"].batch
    factors = {o[o.index("--batch-factor") + 1] for o, _ in workers.asked}
    assert factors == {"3"}


@pytest.mark.usefixtures("options")
@pytest.mark.parametrize("ending", [".json", ".md", ".svg"])
def test_results_that_are_there_are_replaced_by_force_only(
    ending: str, monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    there = output.with_suffix(ending)
    there.parent.mkdir()
    there.write_text("mine", encoding="utf-8")
    workers = Workers()
    with pytest.raises(SystemExit, match=r"results\..* --output, or .* --force"):
        driven(monkeypatch, workers, output)
    assert (there.read_text(encoding="utf-8"), workers.asked) == ("mine", [])
    driven(monkeypatch, workers, output, "--force")
    assert there.read_text(encoding="utf-8") != "mine"


@pytest.mark.usefixtures("options")
def test_a_run_on_the_same_machine_replaces_no_results_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    workers = Workers()
    monkeypatch.setattr(processes, "program", workers)
    assert training_step.main(QUICK) == 0
    asked = len(workers.asked)
    with pytest.raises(SystemExit, match="--force"):
        training_step.main(QUICK)
    assert len(workers.asked) == asked
    assert training_step.main([*QUICK, "--force"]) == 0


@pytest.mark.parametrize("flag", ["--output", "--report-only"])
@pytest.mark.parametrize("name", ["x.md", "x.svg", "x"])
def test_results_have_the_ending_that_the_page_and_chart_have_not(
    flag: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(flag, name)
    assert f"{name} does not end in .json" in capsys.readouterr().err


@pytest.mark.usefixtures("options")
def test_a_terminal_that_lacks_characters_loses_no_page(
    monkeypatch: pytest.MonkeyPatch, output: pathlib.Path
) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "latin-1"))
    code, _ = driven(monkeypatch, Workers(), output)
    sys.stdout.flush()
    assert code == 0
    assert "least–most" in output.with_suffix(".md").read_text(encoding="utf-8")
    assert "least?most" in printed.getvalue().decode("latin-1")


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
    assert "| mlp " in output.with_suffix(".md").read_text(encoding="utf-8")


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
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    output.with_suffix(".md").unlink()
    shown_on = output.parent / "comparison.md"
    shown_on.write_text("\n".join(table.marks(output.stem)), encoding="utf-8")
    monkeypatch.setattr(processes, "program", None)
    asked = ["--report-only", str(output), "--page", str(shown_on)]
    assert training_step.main(asked) == 0
    assert output.with_suffix(".md").read_text(encoding="utf-8") == page
    assert "](results.svg)" in shown_on.read_text(encoding="utf-8")


@pytest.mark.usefixtures("options")
def test_a_machine_that_cannot_be_asked_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"error": "ImportError: no"}
    monkeypatch.setattr(processes, "program", lambda *_: broken)
    with pytest.raises(SystemExit, match="could not be asked: ImportError: no"):
        training_step.main([])
