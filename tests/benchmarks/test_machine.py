"""What a benchmark ran on: versions, and what the plugin makes of the machine."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest
import tensorflow as tf

import amp
from benchmarks import machine


def test_the_machine_tells_versions_and_type() -> None:
    found = machine.machine()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["cores"] >= 1
    assert found["cpu"]
    assert set(found["flags"]) <= machine.FLAGS


def test_the_policy_of_the_environment_decides_the_type(monkeypatch) -> None:
    monkeypatch.setenv("AMP_DTYPE", "bfloat16")
    monkeypatch.setenv("AMP_EMULATE", "1")
    found = machine.machine()
    assert found["dtype"] == "bfloat16"
    assert found["reason"] == amp.resolve(amp.Policy.from_env()).reason


def test_what_changes_kernels_is_told_where_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in machine.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert machine.machine()["environment"] == {}
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    assert machine.machine()["environment"] == {"DNNL_MAX_CPU_ISA": "AVX2"}


def git(root: pathlib.Path, *options: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", "-C", str(root), *who, *options], check=True)


def test_the_commit_is_told_with_whether_files_were_changed_since(
    tmp_path: pathlib.Path,
) -> None:
    assert machine.commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    file = tmp_path / "file"
    file.write_text("old", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "x")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/untracked").write_text("", encoding="utf-8")
    found = machine.commit(tmp_path)
    assert found is not None
    assert (len(found["id"]), found["dirty"]) == (40, False)
    assert machine.commit(tmp_path / "results") is None  # another's repository
    file.write_text("new", encoding="utf-8")
    assert machine.commit(tmp_path) == {**found, "dirty": True}


def test_without_git_no_commit_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() is None
