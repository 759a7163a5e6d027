"""Tables and pictures come from the files of results alone; the command says so."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from convergence_runs import made_up
from rich import console, progress

from convergence import __main__ as command
from convergence import (
    families,
    pictures,
    probe,
    report,
    results,
    settings,
    staleness,
    tables,
    verdict,
)
from convergence.errors import ResultError

OTHER = [0.5, 0.52, 0.54, 0.51, 0.53]


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results are counted that are of this protocol."""
    first = results.PROTOCOL

    def reason(result: Mapping[str, Any], *others: object) -> str:
        return "" if result.get("protocol") == first else "of an earlier protocol"

    monkeypatch.setattr(staleness, "reason", reason)


def never(result: Mapping[str, Any]) -> None:
    raise AssertionError("nothing is planned anew")


@pytest.fixture
def written(tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
    result = made_up(constant=OTHER)
    results.write(tmp_path / results.file_name(result), result)
    return {path.name: path for path in report.write(tmp_path, never)}


def test_the_tables_are_what_the_json_gives(written: dict[str, pathlib.Path]) -> None:
    text = written["report.md"].read_text()
    (result,) = results.every(written["report.md"].parent)
    for row in verdict.verdict(result).rows:
        assert f"| {row.setting} | {row.mean:.4g} | {row.deviation:.2g} |" in text
    says = "the interval of the metric, -0.4 … -0.4, leaves ±0.05"
    assert says in text
    assert "**Fails**" in text
    assert "+0.00% (+0.00% … +0.00%) | ±2.02%" in text
    assert "Commit c; 2 minutes of training" in text
    page = written["report.html"].read_text()
    assert says in page
    assert page.count("<svg") == 1


def test_the_trivial_model_and_classes_are_told() -> None:
    result = made_up("ssd", float32=[0.5] * 5, dynamic=[0.4] * 5)
    assert tables.classes_table(result) == []
    for run in result["runs"]:
        run["classes"] = {"cat": run["metric"] - 0.1, "dog": run["metric"] + 0.1}
    head, cat, dog = tables.classes_table(result)
    assert head == ("mAP of", *settings.SETTINGS)
    assert (cat[0], cat[1], cat[5]) == ("cat", "0.4", "0.3")
    assert (dog[0], dog[1], dog[5]) == ("dog", "0.6", "0.5")
    page = report.markdown([(result, "")], "")
    assert "trivial model (mean boxes) 0.2, float32 beats it" in page
    assert "| cat | 0.4 |" in page
    result["trivial"]["value"] = 0.5
    assert "float32 **does not beat it**" in report.about(result)
    del result["trivial"]
    assert "no trivial model" in report.about(result)


def test_what_the_rule_finds_is_said(written: dict[str, pathlib.Path]) -> None:
    """Without noise all that is beyond the margins, of 2 % and 0.05.

    The latter is of the 0.72 by which float32 is better than the trivial model.
    """
    (line,) = (
        line
        for line in written["report.md"].read_text().splitlines()
        if line.startswith("| resnet, quick |")
    )
    assert line.endswith("| 2.02% | 0.05 | 7% | **fails** |")


def test_pictures_are_the_same_in_every_drawing_and_whole_xml(
    written: dict[str, pathlib.Path],
) -> None:
    name = "resnet-none-float16-emulated-quick.svg"
    drawn = written[name].read_text()
    ElementTree.fromstring(drawn)
    assert pictures.picture(made_up(constant=OTHER)) == drawn
    for words in ("2^-24", "2^-14", "2^16", "unscaled", "times 2^10", "loss scale"):
        assert words in drawn
    for words in ("dynamic, by weights", "perturbed", "difference over margin"):
        assert words in drawn


def test_results_that_are_not_counted_say_why_and_are_not_judged(
    tmp_path: pathlib.Path,
) -> None:
    old = made_up()
    for run in old["runs"]:  # what the first protocol wrote
        for key in ("ends", "scalers", "plan"):
            del run[key]
    for key in ("protocol", "settings", "code", "controls", "begun"):
        del old[key]
    path = tmp_path / results.file_name(old)
    results.write(path, old)
    assert [p.name for p in report.write(tmp_path, never)] == [
        "report.md",
        "report.html",
    ]
    text = (tmp_path / "report.md").read_text()
    assert "| 0.92 | 0.92 | 0.92 | 0.92 | 0.92 | – | – | – | not counted |" in text
    assert f"| {path.name} | of an earlier protocol |" in text
    assert "Passes" not in text


def test_controls_have_a_table_of_their_own(tmp_path: pathlib.Path) -> None:
    result = made_up(dynamic=OTHER) | {"controls": True}
    told, faults = result["settings"], {"constant": "zeroed", "dynamic": "not_skipped"}
    sound = {name: told[name] for name in ("float32", "unscaled")}
    result["settings"] = sound | {faults[name]: told[name] for name in faults}
    for run in result["runs"]:
        run["setting"] = faults.get(run["setting"], run["setting"])
    result["runs"] = [r for r in result["runs"] if r["setting"] in result["settings"]]
    results.write(tmp_path / results.file_name(result), result)
    names = [path.name for path in report.write(tmp_path, never)]
    assert names == ["report.md", "report.html"]
    text = (tmp_path / "report.md").read_text()
    assert "| not_skipped | metric |" in text
    assert "| zeroed | not found |" in text
    assert "\n| unscaled |" not in text


def test_shares_under_the_lines_are_counted_before_and_after_scaling() -> None:
    head, row = tables.layers_table(made_up())
    assert head == tables.LAYER_HEAD
    # 2^-30, 2^-20 and 1: under 2^-24 the first, under 2^-14 two; times 2^10 one each.
    assert row == ("dense", "33.3%", "66.7%", "0.0%", "33.3%")


def test_times_are_told_of_native_runs_alone() -> None:
    native = made_up(dtype="bfloat16") | {"emulated": False}
    for run in native["runs"]:
        run["seconds"] = {"float32": 6.0, "dynamic": 4.0}.get(run["setting"], 8.0)
    head, *rows = tables.times_table(native)
    assert head == tables.TIMES_HEAD
    assert rows[0] == ("float32", "6.0 s", "1.00")
    assert rows[-1] == ("dynamic", "4.0 s", "1.50")
    assert tables.times_table(native | {"emulated": True}) == []


def test_native_runs_stand_beside_emulated_ones_of_the_same_seeds() -> None:
    emulated = made_up(dtype="bfloat16")
    worse = made_up(dtype="bfloat16", dynamic=OTHER)
    native = worse | {"emulated": False}
    assert tables.native_table([emulated]) == []
    assert tables.native_table([native, made_up(dtype="float16")]) == []
    head, *rows = tables.native_table([emulated, native])
    assert head == tables.NATIVE_HEAD
    told = {row[2]: (row[3], row[-1]) for row in rows}
    count = str(len(OTHER))
    assert told == {
        "unscaled": (count, "equal"),
        "constant": (count, "equal"),
        "dynamic": (count, "equal, different"),
    }
    for run in native["runs"]:
        run["seed"] += 100
    assert tables.native_table([emulated, native]) == []


def test_what_gradients_lost_is_told_the_most_first() -> None:
    _, first, second = tables.lost_table(made_up())
    assert first == ("dense/kernel", "25.0%", "50.0%", "25.0%", "50.0%")
    assert second == ("dense/bias", "0.0%", "12.5%", "0.0%", "12.5%")


def test_histograms_count_every_value_once() -> None:
    values = np.array([0.0, 1.0, -1.5, 2.0**-24, 1e-42, np.inf, np.nan, 2.0**100])
    held = probe.histogram(values)
    assert (held["zeros"], held["nonfinite"]) == (1, 2)
    assert sum(held["counts"]) == 5
    assert held["lowest"] == probe.LOWEST  # the denormal
    assert held["counts"][-24 - probe.LOWEST] == 1
    assert held["counts"][0 - probe.LOWEST] == 2
    assert probe.share_below(held, -14) == 2 / 5
    assert probe.histogram(np.zeros(3))["counts"] == []
    assert probe.share_below(probe.histogram(np.zeros(3)), 0) == 0.0


def test_the_page_keeps_what_is_outside_the_marks() -> None:
    text = f"before {report.BEGIN} old {report.END} after"
    new = report.between_marks(text, "new")
    assert new.startswith("before ")
    assert new.endswith(" after")
    assert "new" in new
    assert "old" not in new
    with pytest.raises(ValueError, match="lacks"):
        report.between_marks("", "new")


def test_no_results_say_so(tmp_path: pathlib.Path) -> None:
    report.write(tmp_path, never)
    assert "There are no results yet." in (tmp_path / "report.md").read_text()
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ResultError, match="no results"):
        report.write(tmp_path, never)


def test_files_of_results_are_json_with_machine_and_versions(
    tmp_path: pathlib.Path,
) -> None:
    result = made_up()
    path = tmp_path / "x.json"
    results.write(path, result)
    assert results.read(path) == json.loads(json.dumps(result))
    assert {"tensorflow", "keras", "numpy"} <= result["machine"]["versions"].keys()
    assert result["machine"]["cores"] >= 1


def test_the_list_names_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    for family in families.FAMILIES.values():
        assert f"{family.name} " in printed
        assert family.files in printed
    wanted = sum(map(len, families.GOALS.values()))
    assert printed.count("goal of the full size") == wanted


@pytest.mark.slow
def test_an_error_is_told_and_is_exit_status_2(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it would set holds for the whole process.
    monkeypatch.setattr("tensorflow.config.experimental.enable_op_determinism", int)
    arguments = ["run", "resnet", "--quick", "--data-dir", str(tmp_path)]
    arguments += ["--margins", str(tmp_path / "margins.json")]
    assert command.main([*arguments, "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in (str(tmp_path), "allowed:", "do now:"))


@pytest.mark.parametrize("name", ["calibrate", "run", "controls", "reach", "report"])
def test_a_directory_of_data_is_missed_at_once(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments = [] if name == "report" else ["resnet"]
    arguments += [] if name in ("reach", "report") else ["--quick"]
    nowhere = str(tmp_path / "nowhere")
    assert command.main([name, *arguments, "--data-dir", nowhere]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in ("no such directory", nowhere, "do now:"))


@pytest.mark.parametrize("name", ["calibrate", "run", "controls", "drill", "report"])
def test_a_file_is_no_place_for_results(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments = [] if name in ("drill", "report") else ["resnet", "--quick"]
    file = tmp_path / "results"
    file.touch()
    assert command.main([name, *arguments, "--results", str(file)]) == 2
    said = capsys.readouterr().err
    assert all(
        part in said for part in ("no directory", f"--results {file}", "do now:")
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_where_stderr_is_a_file_each_run_has_a_line(
    terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = progress.Progress(
        console=console.Console(stderr=True, force_terminal=terminal)
    )
    teller = command._Teller(bars)
    for step in range(1, 4):
        teller("resnet", "float32", 300, 3, step)
    teller.done("resnet")
    line = "resnet float32 seed 300: 3 steps\n"
    assert capsys.readouterr().err == ("" if terminal else line)


@pytest.mark.parametrize("name", ["calibrate", "run", "controls"])
def test_another_python_does_not_judge_by_checked_in_margins(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: object) -> object:
        raise AssertionError("nothing is to be trained, and no margins frozen")

    monkeypatch.setattr(command, "_trained", trained)
    monkeypatch.setattr(command, "FROZEN_BY", (2, 7))
    assert command.main([name, "resnet", "--quick"]) == 2
    assert "python2.7" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="no margins frozen"):
        command.main([name, "resnet", "--quick", "--margins", "own.json"])


def test_it_is_told_how_many_results_were_looked_at(tmp_path: pathlib.Path) -> None:
    for name in ("resnet", "ssd"):
        result = made_up(name)
        results.write(tmp_path / results.file_name(result), result)
    told: list[tuple[int, int]] = []
    report.write(tmp_path, never, tell=lambda *counts: told.append(counts))
    assert told == [(1, 2), (2, 2)]


def test_a_ctrl_c_waits_for_no_result_that_has_not_begun(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in families.FAMILIES:
        result = made_up(name)
        results.write(tmp_path / results.file_name(result), result)
    begun: list[object] = []

    def reason(*_: object) -> str:
        begun.append(None)
        time.sleep(0.1)
        return ""

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(staleness, "reason", reason)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        report.write(tmp_path, never, tell=interrupt)
    assert len(begun) < len(families.FAMILIES) / 2


@pytest.mark.parametrize("name", ["calibrate", "run", "controls"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "required: NAME"),
        (["alexnet", "--quick"], "invalid choice: 'alexnet'"),
        (["resnet", "--quick", "--seeds", "0"], "0 is not a number of seeds"),
        (["resnet"], "one of the arguments --quick --full is required"),
        (["resnet", "--quick", "--full"], "not allowed with argument --quick"),
    ],
)
def test_wrong_arguments_are_refused(
    name: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([name, *arguments])
    assert told in capsys.readouterr().err


def test_a_family_without_a_goal_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["reach", "bert"])
    assert "invalid choice: 'bert'" in capsys.readouterr().err


def test_rows_of_the_table_are_sound() -> None:
    for family in families.FAMILIES.values():
        assert family.seeds >= 3
        assert family.margin > 0
        for size in (family.full, family.quick, family.real):
            better = size.floor > family.worst
            assert better is family.higher
