"""Reports that jobs wrote are explained at once, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from report_pages import large_report

import amp
from amp import cli
from amp.errors import GraphError
from amp.integration.files import report_files
from amp.policy import Policy

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[3]
FORCED = Policy(dtype="bfloat16", assignment="all")


def test_a_jobs_report_is_explained_from_its_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with amp.mixed_precision_scope(FORCED, report=str(tmp_path)):
        tf.function(lambda x: tf.matmul(x, x, name="mine"))(tf.ones([4, 4]))
    (path,) = tmp_path.glob("*.json")
    assert cli.main(["explain", str(path), "--node", "mine"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("mine (MatMul) is bfloat16: ")
    assert f"  source   {__file__}:" in told
    assert cli.main(["explain", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["report.json"], 0),
        (["report.json", "--node", "layer_1/norm/mul"], 0),
        (["report.json", "--html"], 0),
        (["--diff", "report.json", "report.json"], 0),
        (["report.json", "--node", "nothing"], 2),
        (["nowhere.json"], 2),
        ([], 2),
    ],
)
def test_what_needs_no_tensorflow_imports_none(
    tmp_path: Path, args: list[str], code: int
) -> None:
    (tmp_path / "report.json").write_text(large_report(200).to_json())
    text = (
        f"import sys; from amp import cli; code = cli.main({['explain', *args]!r})\n"
        "print(code, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert done.stdout.endswith(f"{code} False\n")


def test_of_a_directory_of_reports_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(GraphError, match="a directory of 2 reports") as raised:
        report_files.is_report(tmp_path)
    assert "one.json" in str(raised.value)
    assert f"do now:  amp explain {tmp_path}" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"decisions": []}', "no JSON"])
def test_json_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(GraphError, match="this is no report"):
        report_files.read(tmp_path / "bad.json")


@pytest.mark.parametrize("flag", ["--device", "--tags", "--signature", "--dtype"])
def test_a_report_is_not_planned_again(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(large_report(20).to_json())
    for paths in ([str(path)], ["--diff", str(path), str(path)]):
        assert cli.main(["explain", *paths, flag, "auto"]) == 2
        told = capsys.readouterr().err
        assert f"{flag} was given" in told
        assert f"{flag} for a graph, not a report" in told


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("seconds32", "x", "field 'seconds32': 'x', no float"),
        ("casts_spared", None, "field 'casts_spared': None, no object"),
        ("made_for", [1], "field 'made_for': [1], no object"),
        ("decisions", [{"node": 5}], "field 'decisions': field 'node': 5, no str"),
        ("of_tomorrow", 1, "field 'of_tomorrow' is unknown here: of a later version?"),
    ],
)
def test_a_damaged_report_is_refused_by_its_field(
    tmp_path: Path, field: str, value: object, found: str
) -> None:
    read = json.loads(large_report(10).to_json())
    (tmp_path / "report.json").write_text(json.dumps({**read, field: value}))
    with pytest.raises(GraphError) as error:
        report_files.read(tmp_path / "report.json")
    assert found in error.value.found


@pytest.mark.parametrize("text", ["[", "[" * 200_000, "[]", "5"])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(GraphError, match="this is no report"):
        report_files.read(tmp_path / "report.json")
