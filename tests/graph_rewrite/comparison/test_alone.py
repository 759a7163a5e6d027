"""Each 16-bit node by itself: beside it stands float32, and rounding is forgiven."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from pairs import pair_of

from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.comparison import alone
from amp.graph_rewrite.comparison.alone import Beside
from amp.graph_rewrite.graph import ir

v1 = tf.compat.v1
BRAIN = FORMATS["bfloat16"]


def build():
    x = v1.placeholder(tf.float32, [8, 16], name="x")
    hidden = tf.nn.relu(tf.matmul(x, tf.ones([16, 16]), name="product"), name="relu")
    tf.matmul(tf.reshape(hidden, [8, 16]), tf.ones([16, 16]), name="y")


def test_beside_each_16_bit_node_stands_float32_on_the_same_values():
    pair = pair_of(build)
    module, found = alone.with_float32_beside(pair)
    assert {each.name for each in found} == {"product", "relu", "y"}
    nodes = module.main.nodes
    for each in found:
        exact = nodes[each.exact[0]]
        assert exact.types("T") == (ir.FLOAT,)
        sources = [nodes[edge[0]] for edge in exact.inputs]
        assert {source.op for source in sources} == {"Cast"}
        low = nodes[each.name].inputs
        assert [source.inputs[0] for source in sources] == list(low)
    product = next(each for each in found if each.name == "product")
    assert product.terms == 16
    assert product.total is not None


def test_an_emulated_twin_has_no_kernel_to_check():
    assert alone.with_float32_beside(pair_of(build, emulate=True))[1] == []


def judged(found, exact, total=None, **more):
    edge = ("y", 0)
    beside = Beside("y", "Op", edge, edge, None if total is None else edge, 4.0)
    arrays = [found, exact] + ([] if total is None else [total])
    values = iter([np.array(array, np.float32) for array in arrays])
    return alone.kernel_error(beside, values, BRAIN, **({"low": False} | more))


def test_four_roundings_are_forgiven_and_five_are_not():
    unit = BRAIN.unit
    assert not judged([1.0 + 4 * unit], [1.0]).wrong
    assert judged([1.0 + 5 * unit], [1.0]).wrong


def test_what_adds_up_in_float32_is_forgiven_by_the_size_of_its_terms():
    error = 2 * 4.0 * 2.0**-24 * 1e6  # two kernels, four terms
    assert not judged([0.9 * error], [0.0], [1e6]).wrong
    assert judged([1.1 * error], [0.0], [1e6]).wrong


def test_a_kernel_known_to_add_up_in_16_bits_is_forgiven_nine_roundings():
    assert not judged([1.0 + 8 * BRAIN.unit], [1.0], [1.0], low=True).wrong
    assert judged([1.0 + 14 * BRAIN.unit], [1.0], [1.0], low=True).wrong


@pytest.mark.parametrize("found", [math.inf, math.nan])
def test_what_is_finite_in_float32_and_fits_has_to_be_finite(found):
    assert judged([found, 1.0], [2.0, 1.0]).wrong
    assert not judged([math.inf, 1.0], [BRAIN.largest, 1.0]).wrong


def test_denormals_may_be_rounded_to_their_spacing():
    least = BRAIN.smallest * BRAIN.unit
    assert not judged([0.0], [least]).wrong
