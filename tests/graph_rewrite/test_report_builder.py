"""`outcome`: the report tells what was decided, in one verdict and in counts."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, rewritten, v1

from amp.graph_rewrite.report import Report


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
