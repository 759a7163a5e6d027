"""`report_builder`: the report tells what was decided, in one verdict and in counts."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, rewritten, settled, spec, traced, v1

from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import called_elsewhere


def report(**fields: object) -> Report:
    return rewritten(graph_def(matmul_chain), **fields).report


def test_what_was_rewritten_says_by_how_much_it_should_be_faster() -> None:
    told = report()
    gain = told.seconds32 / told.seconds16
    assert told.verdict == f"rewritten, predicted {gain:.2f}x faster"
    assert told.nodes_low > 0


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"emulate": True}, "rewritten, emulated: values as in 16 bits, no faster"),
        ({"deny": ("MatMul",)}, "left in float32: no gain"),
        ({"assignment": "cost"}, "left in float32: no gain"),
    ],
)
def test_the_other_verdicts(fields: dict[str, object], verdict: str) -> None:
    assert report(**fields).verdict == verdict


def test_too_little_gain_is_told_with_the_figure() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [2048, 2048])
        tf.exp(tf.matmul(x, x, name="product"))

    given = {"assignment": "cost", "min_gain": 0.99}
    told = rewritten(graph_def(build), **given).report
    assert told.verdict.startswith("left in float32: ")
    assert told.nodes_low == told.casts == 0


def test_an_earlier_rewrite_leaves_nothing_more_to_convert() -> None:
    once = rewritten(graph_def(matmul_chain))
    assert rewritten(once.graph).report.verdict == "nothing more to convert"


def test_a_function_called_elsewhere_has_every_float32_node_left_for_the_device() -> (
    None
):
    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return x + x

    def calling(x: tf.Tensor, n: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return double(x), n * n

    module, _ = traced(calling, spec(2), spec(2, dtype=tf.int32))
    told = called_elsewhere(module, settled(A100, dtype="float16"), "/device:CPU:0")
    cause = "called on /device:CPU:0, where the plan is for a GPU"
    assert told.verdict == f"left in float32: {cause}"
    assert (told.dtype, told.nodes_low) == ("float16", 0)
    assert {(d.dtype, d.rule, d.cause) for d in told.decisions} == {
        ("float32", "device", cause)
    }
    named = {d.node.rpartition("::")[2]: d.op for d in told.decisions}
    assert named["add"] == "AddV2"
    assert "mul" not in named  # of integers
    assert any("double" in d.node.partition("::")[0] for d in told.decisions)
