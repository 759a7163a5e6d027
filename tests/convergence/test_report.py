"""Tables and pictures come from the files of results alone; the command says so."""

from __future__ import annotations

import json
import pathlib
from xml.etree import ElementTree

import numpy as np
import pytest
from convergence_runs import made_up

from convergence import __main__ as command
from convergence import families, pictures, probe, report, results, verdict
from convergence.errors import ResultError


@pytest.fixture
def written(tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
    result = made_up(constant=[0.5, 0.52, 0.54, 0.51, 0.53])
    results.write(tmp_path / results.file_name(result), result)
    return {path.name: path for path in report.write(tmp_path)}


def test_the_tables_are_what_the_json_gives(written: dict[str, pathlib.Path]) -> None:
    text = written["report.md"].read_text()
    (result,) = results.every(written["report.md"].parent)
    for row in verdict.verdict(result).rows:
        assert f"| {row.setting} | {row.mean:.4g} | {row.deviation:.2g} |" in text
    assert "the interval -0.4 … -0.4 leaves ±0.05" in text
    assert "**Fails**" in text
    page = written["report.html"].read_text()
    assert "the interval -0.4 … -0.4 leaves ±0.05" in page
    assert page.count("<svg") == 1


def test_the_trivial_model_and_classes_are_told() -> None:
    result = made_up("ssd", float32=[0.5] * 5, dynamic=[0.4] * 5)
    assert "no trivial model" in report.about(result)
    assert report.classes_table(result) == []
    result["trivial"] = {"name": "mean boxes", "value": 0.2}
    for run in result["runs"]:
        run["classes"] = {"cat": run["metric"] - 0.1, "dog": run["metric"] + 0.1}
    head, cat, dog = report.classes_table(result)
    assert head == ("mAP of", "float32", "unscaled", "constant", "dynamic")
    assert (cat[0], cat[1], cat[4]) == ("cat", "0.4", "0.3")
    assert (dog[0], dog[1], dog[4]) == ("dog", "0.6", "0.5")
    page = report.markdown([result], "")
    assert "trivial model (mean boxes) 0.2, float32 beats it" in page
    assert "| cat | 0.4 |" in page
    result["trivial"]["value"] = 0.5
    assert "float32 **does not beat it**" in report.about(result)


def test_pictures_are_the_same_in_every_drawing_and_whole_xml(
    written: dict[str, pathlib.Path],
) -> None:
    name = "resnet-none-float16-emulated-quick.svg"
    drawn = written[name].read_text()
    ElementTree.fromstring(drawn)
    assert pictures.picture(made_up(constant=[0.5, 0.52, 0.54, 0.51, 0.53])) == drawn
    for words in ("2^-24", "2^-14", "unscaled", "times 2^10", "loss scale", "dynamic"):
        assert words in drawn


def test_shares_under_the_lines_are_counted_before_and_after_scaling() -> None:
    head, row = report.layers_table(made_up())
    assert head[1:] == tuple(report.LAYER_HEAD[1:])
    # 2^-30, 2^-20 and 1: under 2^-24 the first, under 2^-14 two; times 2^10 one each.
    assert row == ("dense", "33.3%", "66.7%", "0.0%", "33.3%")


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
    report.write(tmp_path)
    assert "There are no results yet." in (tmp_path / "report.md").read_text()
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ResultError, match="no results"):
        report.write(tmp_path)


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


@pytest.mark.slow
def test_an_error_is_told_and_is_exit_status_2(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it would set holds for the whole process.
    monkeypatch.setattr("tensorflow.config.experimental.enable_op_determinism", int)
    nowhere = str(tmp_path / "nowhere")
    arguments = ["run", "resnet", "--quick", "--data-dir", nowhere]
    assert command.main([*arguments, "--results", str(tmp_path)]) == 2
    assert "no such directory" in capsys.readouterr().err


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
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["run", *arguments])
    assert told in capsys.readouterr().err


def test_rows_of_the_table_are_sound() -> None:
    for family in families.FAMILIES.values():
        assert family.seeds >= 3
        assert family.margin > 0
        for size in (family.full, family.quick, family.real):
            better = size.floor > family.worst
            assert better is family.higher
