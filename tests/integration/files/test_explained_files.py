"""Files explained: graphs for this machine or another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import rewriting
import tensorflow as tf

import amp
from amp import cli
from amp.errors import PolicyError, RewriteError
from amp.integration.files import explained_files, graph_files
from amp.integration.files.explained_files import Asked
from amp.integration.measuring import job_timer
from amp.policy import Policy

pytestmark = pytest.mark.kernels

FORCED = Policy(dtype="bfloat16", assignment="all")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A GraphDef, and a SavedModel with its stack traces."""
    graph = rewriting.graph_def(rewriting.matmul_chain)
    tf.io.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
    module = tf.Module()
    module.w = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(x, module.w, name="inner_product"))

    spec = [tf.TensorSpec([4, 4])]
    module.f = tf.function(lambda x: inner(x) + 1.0, input_signature=spec)
    module.g = tf.function(lambda x: inner(x) * 2.0, input_signature=spec)
    options = tf.saved_model.SaveOptions(save_debug_info=True)
    signatures = {"serving_default": module.f, "other": module.g}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures, options)
    return tmp_path


@pytest.mark.parametrize("name", ["graph.pb", "model"])
def test_explain_and_rewrite_agree_on_the_number_of_nodes(
    place: Path, name: str
) -> None:
    report = explained_files.explain(place / name, Asked(FORCED))
    told = graph_files.rewrite(place / name, place / "out", FORCED, [], [])
    assert f"{report.nodes_low} of {report.nodes_total} nodes in bfloat16" in told
    assert report.nodes_low > 0


def test_a_report_on_a_signature_says_what_is_not_in_it(place: Path) -> None:
    whole = explained_files.explain(place / "model", Asked(FORCED))
    asked = Asked(FORCED, signature="other")
    report = explained_files.explain(place / "model", asked)
    assert whole.part == ""
    said = re.fullmatch(
        r"signature other alone, (\d+) of the graph's (\d+) nodes; "
        "not in it: serving_default",
        report.part,
    )
    assert said is not None
    assert int(said[1]) < int(said[2])
    assert f"  part         {report.part}" in str(report)
    assert report.nodes_total < whole.nodes_total


def test_a_saved_model_that_noted_its_traces_has_source_lines(place: Path) -> None:
    report = explained_files.explain(place / "model", Asked(FORCED))
    products = [one for one in report.decisions if one.op == "MatMul"]
    assert len(products) == 2
    for one in products:
        assert one.source.startswith(f"{__file__}:")
        assert "inner_product" in report.source_text[one.source]


def test_a_device_that_is_not_here_is_predicted_and_said_to_be(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_here(wanted: Any) -> Any:
        raise AssertionError("times of this machine say nothing of another")

    monkeypatch.setattr(job_timer, "stored", measured_here)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4096, 4096], name="x")
        tf.matmul(x, x, name="large")
    tf.io.write_graph(graph, str(place), "large.pb", as_text=False)
    for name in ("large.pb", "graph.pb", "model"):
        report = explained_files.explain(place / name, Asked(Policy(), "a100"))
        assert report.dtype == "float16"
        assert report.device == "NVIDIA A100 (named, not measured)"
        assert report.device_source.startswith("vendor's data sheet")
        assert report.measured_share == 0.0
        assert "on NVIDIA A100 (named, not measured)" in str(report)
    with pytest.raises(RewriteError):  # the guard sees the machine's own times
        explained_files.explain(place / "large.pb", Asked(Policy(dtype="bfloat16")))


def test_a_function_is_planned_for_another_device_with_its_loss_scale() -> None:
    fn = tf.function(lambda x: tf.matmul(x, x))
    size = tf.TensorSpec([4096, 4096])
    report = amp.explain(fn, size, device="V100")
    assert report.dtype == "float16"
    assert report.loss_scale.startswith("dynamic")
    assert report.nodes_low
    graph = fn.get_concrete_function(size).graph.as_graph_def()
    assert amp.explain(graph, device="amx").dtype == "bfloat16"


def test_what_explain_says_would_change_a_node_does(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", str(place / "model"), "--dtype", "bfloat16"]
    command += ["--assignment", "all", "--node", "inner_product"]
    assert cli.main(command) == 0
    told = capsys.readouterr().out
    keep = told.partition("AMP_KEEP=")[2].split()[0]
    assert keep.endswith("/inner_product")  # of the inlined function
    assert cli.main([*command, "--keep", keep]) == 0
    told = " ".join(capsys.readouterr().out.split())  # lines are as wide as a terminal
    assert "inner_product (MatMul) is float32: kept in float32 by the user" in told
    assert cli.main([*command, "--keep", keep[:-1]]) == 2


def test_an_unknown_device_lists_those_that_are_known(place: Path) -> None:
    with pytest.raises(PolicyError, match="'a1000'") as raised:
        explained_files.explain(place / "graph.pb", Asked(FORCED, "a1000"))
    assert "did you mean a100?" in str(raised.value)
    assert "avx512_bf16" in str(raised.value)
