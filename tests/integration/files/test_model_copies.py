"""`model_copies`: all that is in a SavedModel's directory, nothing that is not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from amp import cli
from amp.integration.files import graph_files, model_copies
from amp.policy import Policy

POLICY = Policy(dtype="bfloat16", assignment="all")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    module = tf.Module()
    module.w = tf.Variable(tf.ones([4, 4]))
    spec = [tf.TensorSpec([4, 4])]
    module.f = tf.function(lambda x: tf.matmul(x, module.w), input_signature=spec)
    tf.saved_model.save(module, str(tmp_path / "model"))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("private")
    return tmp_path / "model"


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("pointed", ["secret/key", "secret", "missing", "."])
@pytest.mark.parametrize("at", ["link", "assets/link", "assets/deep/link"])
def test_a_link_out_of_the_model_is_refused_and_nothing_is_copied(
    model: Path, at: str, pointed: str, absolute: bool, capsys: Any
) -> None:
    (model / at).parent.mkdir(parents=True, exist_ok=True)
    target = model.parent / pointed
    (model / at).symlink_to(
        target if absolute else os.path.relpath(target, (model / at).parent)
    )
    out = model.parent / "out"
    command = ["rewrite", str(model), str(out), "--dtype", "bfloat16"]
    assert cli.main([*command, "--assignment", "all"]) == 2
    err = capsys.readouterr().err
    assert "GraphError: a symbolic link leads out of the SavedModel" in err
    for part in (f"where:   {model / at}", "allowed:", "do now:"):
        assert part in err
    assert {path.name for path in model.parent.iterdir()} == {"model", "secret"}


def test_a_link_by_way_of_another_link_is_followed_to_its_end(model: Path) -> None:
    (model / "assets/second").symlink_to(model.parent / "secret")
    (model / "assets/first").symlink_to("second/key")
    with pytest.raises(model_copies.GraphError, match="leads out"):
        model_copies.copy(model, model.parent / "out", ())


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_inside_the_model_is_one_inside_the_copy(
    model: Path, absolute: bool
) -> None:
    (model / "assets/words").write_text("a b c")
    to = str(model / "assets") if absolute else "../model/assets"
    (model / "alias").symlink_to(to)
    (model / "assets/again").symlink_to(
        model / "assets/words" if absolute else "../../model/assets/words"
    )
    (model / "assets/up").symlink_to("..")
    out = model.parent / "out"
    graph_files.rewrite(model, out, POLICY, [], [])
    assert os.readlink(out / "alias") == "assets"
    assert os.readlink(out / "assets/again") == "words"
    assert (out / "alias/again").read_text() == "a b c"
    assert os.path.realpath(out / "assets/up") == os.path.realpath(out)


def test_a_model_that_is_itself_a_link_is_copied(model: Path) -> None:
    (model.parent / "named").symlink_to("model")
    out = model.parent / "out"
    graph_files.rewrite(model.parent / "named", out, POLICY, [], [])
    x = tf.ones([4, 4])
    assert np.array_equal(tf.saved_model.load(str(out)).f(x), np.full([4, 4], 4.0))


def test_only_the_models_own_file_is_left_out(model: Path) -> None:
    for name in ("saved_model.pb", "fingerprint.pb"):
        (model / "assets" / name).write_text("an asset")
    out = model.parent / "out"
    graph_files.rewrite(model, out, POLICY, [], [])
    for name in ("saved_model.pb", "fingerprint.pb"):
        assert (out / "assets" / name).read_text() == "an asset"


def test_a_copy_of_what_is_read_only_can_be_written(model: Path) -> None:
    """As of a model in a shared or mounted place; what is copied is changed after."""
    for directory in (model / "assets", model):
        directory.chmod(0o555)
    out = model.parent / "out"
    graph_files.rewrite(model, out, POLICY, [], [])
    for directory in (out, out / "assets"):
        assert directory.stat().st_mode & stat.S_IRWXU == stat.S_IRWXU
