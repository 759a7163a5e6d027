"""`amp compare`: exit codes by the bound, and what it prints."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from amp import cli

FORCED = ["--dtype", "bfloat16", "--emulate", "1", "--assignment", "all"]


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "saved"])
def test_graphs_and_saved_models_are_compared(graph, name, capsys):
    assert cli.main(["compare", str(graph / name), *FORCED]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"…{str(graph / name)[-39:]}: ")  # as the user calls it
    assert "none parts from float32" in out
    assert "made up" in out
    assert "product" in out


def test_the_text_fits_the_terminal(graph, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert cli.main(["compare", str(graph / "saved"), *FORCED]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 50


def test_the_bound_is_the_exit_code(graph, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", np.linspace(0.1, 0.2, 32).reshape(4, 8))
    given = ["compare", str(graph / "saved"), *FORCED, "--inputs", f"{tmp_path}/x.npz"]
    assert cli.main([*given, "--bound", "0.1"]) == 0
    assert cli.main([*given, "--bound", "1e-7"]) == 1
    assert "made up" not in capsys.readouterr().out
    assert cli.main([*given, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert 1e-7 < read["error"] < 0.1


def test_what_is_suggested_is_within_the_bound_when_used(graph, capsys, monkeypatch):
    given = ["compare", str(graph / "saved"), *FORCED, "--bound", "1e-6"]
    assert cli.main(given) == 1
    assert cli.main([*given, "--suggest", "1e-6", "--json"]) == 1
    out = capsys.readouterr().out
    keep = json.loads(out[out.index("{") :])["suggestion"]["keep"]
    monkeypatch.setenv("AMP_KEEP", ",".join(keep))
    assert cli.main(given) == 0
    assert cli.main(["explain", str(graph / "saved"), *FORCED]) == 0


@pytest.mark.parametrize("flag", ["--suggest", "--bound"])
def test_a_dry_run_takes_no_flag_that_it_would_ignore(graph, flag, capsys):
    """Its exit code is by the range of the type, whatever error is allowed."""
    given = ["compare", str(graph / "saved"), "--float32-dry-run", flag, "0.1"]
    assert cli.main(given) == 2
    said = capsys.readouterr()
    assert not said.out
    assert f"--float32-dry-run was given with {flag}" in said.err
    assert "leave out" in said.err


def test_a_dry_run_lists_what_leaves_float16(graph, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", np.full([4, 8], 1e5))
    given = ["compare", str(graph / "saved"), "--inputs", f"{tmp_path}/x.npz"]
    assert cli.main([*given, "--float32-dry-run"]) == 1
    told = capsys.readouterr().out
    assert "pass 65504" in told


@pytest.mark.parametrize(
    ("args", "code"), [(["nowhere"], 2), (["saved", "--signature", "none"], 2)]
)
def test_bad_input_has_four_parts(graph, args, code, capsys, monkeypatch):
    monkeypatch.chdir(graph)
    assert cli.main(["compare", *args]) == code
    assert "do now:" in capsys.readouterr().err


def _inputs(place, kind):
    file = place / f"{kind}.npz"
    if kind == "shape":
        np.savez(file, np.ones([4, 7]))
    elif kind == "scalar":
        np.savez(file, np.float32(1))
    elif kind == "complex":
        np.savez(file, np.ones([4, 8], np.complex64))
    elif kind == "array":
        with open(file, "wb") as written:
            np.save(written, np.ones([4, 8]))
    elif kind == "empty":
        file.write_bytes(b"")
    return str(file)


@pytest.mark.parametrize("name", ["graph.pb", "saved"])
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("shape", "'x' has the shape [4, 7]"),
        ("scalar", "'x' has the shape []"),
        ("complex", "'x' is complex64"),
        ("array", "this is no .npz file"),
        ("empty", "this is no .npz file"),
        ("nowhere", "there is no such file"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(graph, name, kind, found, tmp_path, capsys):
    """Code 2, as 1 says that the error is beyond the bound."""
    given = ["--inputs", _inputs(tmp_path, kind)]
    assert cli.main(["compare", str(graph / name), *FORCED, *given]) == 2
    err = capsys.readouterr().err
    assert found in err
    assert err.count("do now:") == 1


@pytest.mark.parametrize("what", ["no variables", "damaged"])
def test_a_model_that_cannot_be_loaded_is_refused(graph, what, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(graph / "saved", model)
    if what == "damaged":
        (model / "variables" / "variables.index").write_bytes(b"x")
    else:
        shutil.rmtree(model / "variables")
    assert cli.main(["compare", str(model), *FORCED]) == 2
    assert "TensorFlow cannot load this model" in capsys.readouterr().err


def test_a_function_that_fails_is_refused(tmp_path, capsys):
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [None, None], name="x")
        tf.matmul(x, tf.ones([8, 8]), name="y")
    tf.io.write_graph(built, str(tmp_path), "graph.pb", as_text=False)
    np.savez(tmp_path / "x.npz", np.ones([4, 7]))
    given = ["--inputs", str(tmp_path / "x.npz")]
    assert cli.main(["compare", str(tmp_path / "graph.pb"), *FORCED, *given]) == 2
    assert "the function fails: Matrix size-incompatible" in capsys.readouterr().err


def test_a_bound_is_a_positive_number(graph, capsys):
    for value in ("-1", "0", "2x", "inf"):
        assert cli.main(["compare", str(graph / "saved"), "--bound", value]) == 2
        told = capsys.readouterr().err
        assert f"argument --bound: {value!r} is no positive number" in told
