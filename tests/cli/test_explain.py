"""`amp explain`: what it tells of a graph, and how it refuses bad input."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_pages import embedded, large_report
from rewriting import GraphDef

from amp import cli

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[2]
FORCED = ["--dtype", "bfloat16", "--emulate", "1", "--assignment", "all"]


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "saved"])
def test_explain_reads_graphs_and_saved_models(graph, name, capsys):
    assert cli.main(["explain", str(graph / name), *FORCED]) == 0
    out = capsys.readouterr().out
    assert "rewritten, emulated" in out
    assert cli.main(["explain", str(graph / name), *FORCED, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes_low"] >= 2
    assert cli.main(["explain", str(graph / name), *FORCED, "--html"]) == 0
    assert embedded(capsys.readouterr().out)["report"] == report
    command = ["explain", str(graph / name), *FORCED, "--node", "product"]
    assert cli.main(command) == 0
    assert "product (MatMul) is bfloat16: a product" in capsys.readouterr().out


def test_explain_takes_flags_before_variables(graph, capsys, monkeypatch):
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_DENY", "Tanh")
    command = ["explain", str(graph / "graph.pb"), *FORCED, "--node", "y"]
    assert cli.main(command) == 0
    assert "y (Tanh) is float32: denied by the policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["nowhere.pb"], "there is no such file"),
        (["graph.pb", "--dtype", "float8"], "'float8' is not accepted"),
        (["graph.pb", "--allow", "MatMull"], "there is no op 'MatMull'"),
        (["graph.pb", "--keep", "nothing*"], "'nothing*' matches no node"),
        (["graph.pb", "--node", "nothing"], "no decision was made about"),
        (["broken.pb"], "this is no GraphDef"),
        (["broken.pbtxt"], "this is no GraphDef"),
        (["empty"], "there is no such file"),
        (["unknown.pb"], "the op 'NoSuchOp' of node 'y' is not registered"),
        (["graph.pb", "--library", "no.so"], "there is no such file"),
        (["graph.pb", "--node", ""], "no decision was made about"),
        (["a" * 300 + ".pb"], "the system refuses this path: File name too long"),
        (["a" * 300 + ".json"], "the system refuses this path: File name too long"),
        (["few.pb"], "node 'product' has 1 inputs"),
        (["nameless.pb"], "an input of node 'y' has no name"),
        (["odd_type.pb"], "DataType 9999"),
    ],
)
def test_bad_input_has_four_parts_and_code_two(graph, args, found, capsys, monkeypatch):
    monkeypatch.chdir(graph)
    unknown = GraphDef.FromString((graph / "graph.pb").read_bytes())
    unknown.node[-1].op = "NoSuchOp"
    (graph / "unknown.pb").write_bytes(unknown.SerializeToString())
    few, nameless, odd = (
        GraphDef.FromString((graph / "graph.pb").read_bytes()) for _ in range(3)
    )
    del [node for node in few.node if node.name == "product"][0].input[1:]
    (graph / "few.pb").write_bytes(few.SerializeToString())
    nameless.node[-1].input[0] = ""
    (graph / "nameless.pb").write_bytes(nameless.SerializeToString())
    odd.node[-1].attr["T"].type = 9999
    (graph / "odd_type.pb").write_bytes(odd.SerializeToString())
    (graph / "broken.pb").write_bytes(b"\xff\xff\xff")
    (graph / "broken.pbtxt").write_text("node { what }")
    (graph / "empty").mkdir(exist_ok=True)
    forced = [] if "--dtype" in args else FORCED
    assert cli.main(["explain", *args, *forced]) == 2
    err = capsys.readouterr().err
    assert found in err
    for part in ("where:", "allowed:", "do now:"):
        assert part in err


def test_one_form_of_a_report_is_printed_at_a_time(graph, capsys):
    command = ["explain", str(graph / "graph.pb"), *FORCED, "--json", "--html"]
    assert cli.main(command) == 2
    assert "several of --node, --json and --html were given" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("closed", ["", " >&-"])
@pytest.mark.parametrize("args", ["", "--html", "--node schön"])
def test_any_output_will_do(tmp_path, args, closed):
    """Its letters need not be those of the report, and it may be closed."""
    report = large_report(10)
    one = dataclasses.replace(report.decisions[0], node="schön")
    report = dataclasses.replace(
        report, function="schön\ud800", decisions=(one, *report.decisions[1:])
    )
    (tmp_path / "report.json").write_text(report.to_json())
    command = f"{sys.executable} -m amp explain report.json {args}{closed}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert bool(ran.stdout) is not bool(closed)
    if args == "--html" and not closed:
        assert "schön" in ran.stdout.decode("utf-8")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_disk_is_told_in_a_line(graph, capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["explain", str(graph / "graph.pb"), *FORCED]) == 2
    told = "amp: not all was written: [Errno 28] No space left on device"
    assert capsys.readouterr().err.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", "it lacks the field function, "), (None, "no report: Is a directory\n")],
)
def test_what_is_no_report_is_said_in_words(text, said, tmp_path, capsys):
    path = tmp_path / "it.json"
    path.mkdir() if text is None else path.write_text(text)
    assert cli.main(["explain", str(path)]) == 2
    assert said in capsys.readouterr().err
