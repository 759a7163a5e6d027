"""`wanted`: what matters is measured, what matters most first, each thing once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf
from rewriting import CPU, context_of, graph_def, module_of, priced_of, v1

from amp.graph_rewrite.cost.measurement_candidates import COVERED, wanted
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import PricedUse
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph import ir


def part(build: Any, runs: float = 1.0, **fields: Any) -> PricedUse:
    module = module_of(graph_def(build))
    context = context_of(module, **fields)
    clock = CostModel(CPU, context.format.name)
    (one,) = priced_of(module, context, clock).uses.values()
    weighted = dataclasses.replace(one.use_analysis, weight=runs)
    return dataclasses.replace(one, use_analysis=weighted)


def layers(*widths: int) -> Any:
    def build() -> None:
        x = v1.placeholder(tf.float32, [256, 512])
        for width in widths:
            x = tf.tanh(tf.matmul(x, v1.placeholder(tf.float32, [x.shape[1], width])))

    return build


def test_each_instance_once_with_all_its_runs() -> None:
    (product, *_) = wanted([part(layers(512, 512, 512), 2.0), part(layers(512))])
    assert product.key.startswith("MatMul *256x512 *512x512 ")
    assert product.runs == 7.0


def test_the_largest_share_of_the_time_comes_first() -> None:
    found = wanted([part(layers(512, 2048))])
    shares = [one.share for one in found]
    assert shares == sorted(shares, reverse=True)
    assert "512x2048" in found[0].key


def test_little_is_left_out() -> None:
    one = part(layers(2048, 2048, 16))
    found = wanted([one])
    assert not any("2048x16" in one.key and "Tanh" in one.key for one in found)
    total = sum(one.times[name][0] for name in one.use_analysis.found.allowed)
    nodes = sum(one.share for one in found if one.work != "cast")
    assert nodes >= (COVERED - 0.05) * total


def test_operations_that_only_start_are_left_out() -> None:
    def build() -> None:
        tf.tanh(tf.matmul(*(v1.placeholder(tf.float32, [4, 4]) for _ in range(2))))

    assert wanted([part(build)]) == []


def test_forms_are_the_two_precisions() -> None:
    (one, *_) = wanted([part(layers(512))])
    for form, number in zip(one.forms, (ir.FLOAT, ir.BFLOAT16), strict=True):
        assert form.node.types("T") == (number,)
        assert [operand.number for operand in form.operands] == [number] * 2
    assert one.moved == 4 * (256 * 512 + 512 * 512 + 256 * 512)


def test_a_product_that_xla_computes_in_float32_is_measured_in_float32() -> None:
    model = CostModel(CPU_AMX.under(True), "bfloat16")
    module = module_of(graph_def(layers(2048)))
    context = context_of(module, CPU_AMX, xla=True)
    found = wanted(list(priced_of(module, context, model).uses.values()))
    assert found
    for one in found:
        single, other = one.forms
        assert single is other
        assert single.node.types("T") == (ir.FLOAT,)


@pytest.mark.parametrize("xla", [False, True])
def test_casts_are_measured_where_they_are_kernels(xla: bool) -> None:
    found = [one for one in wanted([part(layers(2048), xla=xla)]) if one.work == "cast"]
    assert bool(found) is not xla
    for one in found:
        ends = [(f.node.types("SrcT"), f.node.types("DstT")) for f in one.forms]
        down = ((ir.FLOAT,), (ir.BFLOAT16,))
        assert ends == [down, down[::-1]]
