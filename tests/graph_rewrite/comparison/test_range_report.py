"""The report of a dry run: what leaves the range, in the order of the graph."""

from __future__ import annotations

import dataclasses
import json

from amp.graph_rewrite.comparison.range_report import RangedTensor, RangeReport
from amp.graph_rewrite.comparison.tensor_errors import RangeFigures


def ranged(name, over=0.0, under=0.0, gradient=False):
    figures = RangeFigures(1e6 if over else 1.0, over, under, 0.0, 0.0)
    return RangedTensor(name, "Mul", gradient, figures, f"train.py:1  {name} = ...")


def report(*tensors, **more):
    given = {"loss_scale": 1.0, "largest_scale": None} | more
    return RangeReport("step", "float16", 65504.0, tensors, **given)


def test_the_forward_pass_comes_before_gradients_and_what_fits_is_not_listed():
    slope = ranged("slope", under=0.9, gradient=True)
    found = report(slope, ranged("fits"), ranged("huge", over=0.1))
    assert [tensor.name for tensor in found.leaving] == ["huge", "slope"]
    text = str(found)
    assert "1 pass 65504, and 1 more lose values to 0" in text
    assert "train.py:1  huge" in text
    assert "fits" not in text
    assert not found.within()
    assert all(len(line) <= 80 for line in text.splitlines())
    for width in (40, 60):  # a phone's terminal
        assert all(len(line) <= width for line in found.text(width).splitlines())


def test_a_metric_is_told_apart():
    metric = dataclasses.replace(ranged("total", over=1.0), beside=True)
    found = report(metric, ranged("zeros", under=0.1))
    assert [tensor.name for tensor in found.leaving] == ["zeros"]
    assert "1 more of metrics, which stay float32: total" in str(found)
    assert found.within()
    assert json.loads(found.to_json())["tensors"][0]["beside"]


def test_a_scale_under_1_is_said():
    assert "under 1" in str(report(largest_scale=0.25))
    assert "under 1" not in str(report(largest_scale=4.0))
    assert "no gradients" in str(report())
    assert "no gradients" in str(report(ranged("forward")))


def test_gradients_that_are_0_are_not_called_none():
    text = str(report(ranged("zero", gradient=True), loss_scale=1024.0))
    assert "1024; all gradients are 0, which no scale changes" in text
    assert "no gradients" not in text
    figures = RangeFigures(0.0, 0.0, 0.0, 0.0, not_finite=1.0)
    nan = dataclasses.replace(ranged("nan", gradient=True), figures=figures)
    assert "1; no gradient is finite, which no scale changes" in str(report(nan))


def test_the_json_has_every_tensor():
    found = report(ranged("a"), ranged("b", under=0.5))
    assert [row["name"] for row in json.loads(found.to_json())["tensors"]] == ["a", "b"]
    assert found.within()
