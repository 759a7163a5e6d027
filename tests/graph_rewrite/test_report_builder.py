"""`report_builder`: the report tells what was decided, in one verdict and in counts."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, rewritten, settled, spec, traced, v1

from amp.graph_rewrite import explanation, figures, report_builder
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import called_elsewhere


def report(**fields: object) -> Report:
    return rewritten(graph_def(matmul_chain), **fields).report


def test_what_was_rewritten_says_by_how_much_it_should_be_faster() -> None:
    told = report()
    gain = figures.gain(told.seconds32, told.seconds16)
    assert told.verdict == f"rewritten, predicted {gain}"
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
    why, given = "where the plan is for a GPU", settled(A100, dtype="float16")
    told = called_elsewhere(module, given, "/device:CPU:0", why)
    cause = f"called on /device:CPU:0: {why}"
    assert told.verdict == f"left in float32: {cause}"
    assert (told.dtype, told.nodes_low) == ("float16", 0)
    assert {(d.dtype, d.rule, d.cause) for d in told.decisions} == {
        ("float32", "device", cause)
    }
    named = {d.node.rpartition("::")[2]: d.op for d in told.decisions}
    assert named["add"] == "AddV2"
    assert "mul" not in named  # of integers
    assert any("double" in d.node.partition("::")[0] for d in told.decisions)


def test_what_a_node_reads_is_told_by_the_places_of_decisions() -> None:
    decisions = report().decisions
    read = {one.node: [decisions[i].node for i in one.reads] for one in decisions}
    assert read["product"] == ["x", "w"]
    assert read["tanh"] == ["product"]


def test_prices_and_sizes_are_those_of_the_node() -> None:
    by_name = {one.node: one for one in report().decisions}
    product = by_name["product"]
    assert product.seconds32 > 0
    assert product.seconds == product.seconds16
    assert by_name["x"].seconds == by_name["x"].seconds32
    sizes = {one.name: one for one in graph_def(matmul_chain).node}
    shape = sizes["x"].attr["shape"].shape
    assert by_name["x"].elements == math.prod(one.size for one in shape.dim)


def test_reads_stay_within_a_function() -> None:
    @tf.function(autograph=False)
    def squared(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(x, x))

    def build() -> None:
        tf.exp(squared(v1.placeholder(tf.float32, [4, 4])))

    decisions = rewritten(graph_def(build)).report.decisions
    pairs = [(one, decisions[place]) for one in decisions for place in one.reads]
    home = {
        (one.node.rpartition("::")[0], read.node.rpartition("::")[0])
        for one, read in pairs
    }
    assert len(home) == 2
    assert all(mine == theirs for mine, theirs in home)


@pytest.mark.parametrize(
    ("op", "rule", "cause", "change"),
    [
        ("Placeholder", "unlisted", "Placeholder", "held"),
        ("EagerPyFunc", "unlisted", "EagerPyFunc", "python"),
        ("While", "listed", "While", "settled"),
        ("FFT", "unlisted", "FFT", "settled"),
        ("Lgamma", "unlisted", "Lgamma, without a kernel in bfloat16", "kernel"),
        ("Lgamma", "unlisted", "Lgamma", ""),
        ("Max", "listed", "a maximum", ""),
        ("Square", "range", "norm/Square", "overflow"),
        ("Const", "range", "norm/eps", ""),
        ("MatMul", "cost", "1 us in float32, 2 us in 16 bits", ""),
    ],
)
def test_where_to_allow_an_op_would_not_help_another_change_is_named(
    op: str, rule: str, cause: str, change: str
) -> None:
    assert report_builder._change(op, Reason(rule, cause)) == change
    assert change in {"", *explanation.CHANGES}
