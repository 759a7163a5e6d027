"""Graphs in files: written whole or not at all, and every refusal in four parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rewriting
import tensorflow as tf
from google.protobuf import text_format

from amp import cli
from amp.integration.files import graph_files
from amp.integration.process import PROCESS
from amp.policy import Policy

FORCED = ["--dtype", "bfloat16", "--assignment", "all"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    """A GraphDef in both forms, a SavedModel, and files that are none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PROCESS, "started_in", str(tmp_path))
    graph = rewriting.graph_def(rewriting.matmul_chain)
    for name in ("graph.pb", "graph.pbtxt"):
        tf.io.write_graph(graph, str(tmp_path), name, as_text=name.endswith("txt"))
    module = tf.Module()
    module.w = tf.Variable(tf.ones([4, 4]))
    spec = [tf.TensorSpec([4, 4])]
    module.f = tf.function(lambda x: tf.matmul(x, module.w), input_signature=spec)
    tf.saved_model.save(module, "model")
    shutil.copytree("model", "model/v2")
    Path("link").symlink_to("model")
    Path("dangling").symlink_to("nowhere")
    graph.node[1].op = "NoSuchOp"
    tf.io.write_graph(graph, str(tmp_path), "unknown.pb", as_text=False)
    (tmp_path / "none.pb").write_bytes(b"")
    (tmp_path / "broken.pb").write_bytes(b"\xff\xff")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow/saved_model.pb").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("suffix", ["pb", "pbtxt"])
def test_a_graph_is_written_by_its_suffix(
    place: Path, suffix: str, capsys: Any
) -> None:
    command = ["rewrite", f"graph.{suffix}", f"out.{suffix}", "--fetch", "out,tanh:0"]
    assert cli.main([*command, "--feed", "w", *FORCED, "--report", "reports"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"out.{suffix}: 1 of 1 functions rewritten, ")
    assert told.endswith("; reports: reports\n")
    assert {file.suffix for file in Path("reports").iterdir()} == {".json", ".html"}
    graph = rewriting.GraphDef()
    if suffix == "pb":
        graph.ParseFromString(Path("out.pb").read_bytes())
    else:
        text_format.Parse(Path("out.pbtxt").read_text(), graph)
    x = np.ones([8, 16], np.float32)
    low, tanh = rewriting.run(graph, ["out", "tanh"], {"x": x})
    assert low.dtype == tanh.dtype == np.float32
    assert rewriting.casts(graph)


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["nowhere.pb", "o.pb"], "there is no such file"),
        (["empty", "o"], "there is no such file"),
        (["hollow", "o"], "there is no graph in it"),
        (["none.pb", "o.pb"], "there is no node in it"),
        (["broken.pb", "o.pb"], "this is no GraphDef"),
        (["unknown.pb", "o.pb"], "the op 'NoSuchOp' of node"),
        (["graph.pb", "o.pb", "--library", "no.so"], "there is no such file"),
        (["graph.pb", "o.pb", "--library", "broken.pb"], "this library cannot be"),
        (["graph.pb", "o.pb", "--fetch", "nothing"], "there is no node 'nothing'"),
        (["graph.pb", "o.pb", "--fetch", "out:1"], "there is no tensor 'out:1'"),
        (["graph.pb", "o.pb", "--feed", "out:x"], "there is no tensor 'out:x'"),
        (["graph.pb", "o.pb", "--keep", "nothing*"], "'nothing*' matches no node"),
        (["model", "o", "--keep", "nothing*"], "'nothing*' matches no node"),
        (["graph.pb", "graph.pb"], "there is something already"),
        (["model", "model"], "there is something already"),
        (["model", "empty"], "there is something already"),
        (["model", "model/o"], "are one, or one lies inside the other"),
        (["model/saved_model.pb", "model/o"], "are one, or one lies inside the other"),
        (["model/saved_model.pb", "model", "--force"], "the target are one, or one"),
        (["model/v2", "link/v2", "--force"], "the target are one, or one"),
        (["model/v2", "link", "--force"], "there is a symbolic link already"),
        (["model", "dangling", "--force"], "there is a symbolic link already"),
        (["model/v2", "model", "--force"], "the target are one, or one lies inside"),
        (["model/v2/saved_model.pb", "model", "--force"], "the target are one, or"),
        (["graph.pb", "graph.pb", "--force"], "the target are one, or one lies"),
        (["model", "empty", "--force"], "there is something already"),
        (["graph.pb", "model", "--force"], "there is something already"),
        (["model", "graph.pb", "--force"], "there is something already"),
        (["model", "o", "--fetch", "x"], "--fetch was given"),
        (["model", "graph.pb/o"], "this cannot be written"),
    ],
)
def test_what_cannot_be_done_leaves_nothing_behind(
    place: Path, args: list[str], found: str, capsys: Any
) -> None:
    before = _held(place)
    assert cli.main(["rewrite", *args, *FORCED]) == 2
    err = capsys.readouterr().err
    assert found in err
    for part in ("where:", "allowed:", "do now:"):
        assert part in err
    assert _held(place) == before


def _held(place: Path) -> dict[Path, bytes | None]:
    return {p: p.read_bytes() if p.is_file() else None for p in place.rglob("*")}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["model", "empty"], "do now:  name another, or remove what is there"),
        (["graph.pb", "model"], "do now:  name another, or remove what is there"),
        (["graph.pb", "o.pb", "--fetch", "producd"], "did you mean product?"),
    ],
)
def test_what_is_told_to_do_now_can_be_done(
    place: Path, args: list[str], told: str, capsys: Any
) -> None:
    assert cli.main(["rewrite", *args, *FORCED]) == 2
    assert told in capsys.readouterr().err


def test_a_name_as_long_as_the_system_allows_is_written(place: Path) -> None:
    name = "o" * 252 + ".pb"
    assert cli.main(["rewrite", "graph.pb", name, *FORCED]) == 0
    assert Path(name).stat().st_size


def test_no_reports_are_claimed_that_were_not_written(place: Path, capsys: Any) -> None:
    Path("file").touch()
    command = ["rewrite", "graph.pb", "o.pb", "--report", "file", *FORCED]
    with pytest.warns(match="a report was not written"):
        assert cli.main(command) == 0
    assert "reports:" not in capsys.readouterr().out


def test_force_replaces_an_earlier_result_and_only_that(
    place: Path, capsys: Any
) -> None:
    for command in (["graph.pb", "out.pb"], ["model", "out"]):
        assert cli.main(["rewrite", *command, *FORCED]) == 0
        if command[1] == "out":
            Path("out", "stale").touch()
        assert cli.main(["rewrite", *command, *FORCED]) == 2
        assert "--force replaces it" in capsys.readouterr().err
        assert cli.main(["rewrite", *command, *FORCED, "--force"]) == 0
    assert not Path("out", "stale").exists()
    tf.saved_model.load("out")


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["model", "--signature", "x"], "there is no signature 'x'"),
        (["model", "--tags", "serve,x"], "no graph has the tags 'serve,x'"),
        (["graph.pb", "--tags", "serve"], "--tags was given"),
        (["graph.pb", "--signature", "x"], "--signature was given"),
    ],
)
def test_explain_names_what_is_not_there(
    place: Path, args: list[str], found: str, capsys: Any
) -> None:
    assert cli.main(["explain", *args, *FORCED]) == 2
    assert f"GraphError: {found}" in capsys.readouterr().err


def test_a_failure_half_way_leaves_nothing_behind(
    place: Path, monkeypatch: Any, capsys: Any
) -> None:
    def fails(directory: str) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(graph_files.fingerprinting_utils, "write_fingerprint", fails)
    before = sorted(place.rglob("*"))
    assert cli.main(["rewrite", "model", "out", *FORCED]) == 2
    assert "this cannot be written: the disk is full" in capsys.readouterr().err
    assert sorted(place.rglob("*")) == before


def test_where_nothing_is_to_be_done_the_same_graph_is_written(place: Path) -> None:
    policy = Policy(dtype="bfloat16", emulate=True, deny=("MatMul",))
    assert graph_files.rewrite(
        Path("graph.pb"), Path("o.pb"), policy, [], []
    ).startswith("the same graph; ")
    assert Path("o.pb").stat().st_size == Path("graph.pb").stat().st_size
    graph_files.rewrite(Path("model"), Path("deep/o"), policy, [], [])
    loaded = tf.saved_model.load("deep/o")
    assert np.array_equal(loaded.f(tf.ones([4, 4])), np.full([4, 4], 4, np.float32))
