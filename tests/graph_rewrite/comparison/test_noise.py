"""Sums that cancel: what is noise and what is not."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from pairs import pair_of

from amp.graph_rewrite.comparison import noise

v1 = tf.compat.v1


def test_a_sum_below_the_rounding_of_its_terms_is_noise():
    terms, unit = np.full(4, 100.0, np.float32), 2.0**-8
    assert noise.is_noise(np.full(4, 0.3, np.float32), terms, unit)
    assert not noise.is_noise(np.full(4, 0.5, np.float32), terms, unit)


def build():
    x = v1.placeholder(tf.float32, [8, 8], name="x")
    y = tf.matmul(x, tf.ones([8, 8]), name="product")
    tf.matmul(tf.reshape(tf.exp(y, name="exp"), [8, 8], name="moved"), x, name="y")


def test_only_sums_and_products_are_asked_about():
    names = {each.name for each in noise.sums(pair_of(build).watched())}
    assert names == {"product", "y"}


def test_beside_a_sum_stands_that_of_the_absolute_values():
    pair = pair_of(build)
    made = noise.with_totals(pair.plain, ["product"]).main
    total = made.nodes[noise.total("product")[0]]
    assert total.op == "MatMul"
    assert {made.nodes[edge[0]].op for edge in total.inputs} == {"Abs"}
    assert made.nodes["product"] is pair.plain.main.nodes["product"]


def test_what_only_moves_noise_is_noise():
    pair = pair_of(build)
    found = frozenset({("exp", 0)})
    assert noise.with_readers(found, pair.watched(), pair.plain.main) == {
        *(("exp", 0), ("moved", 0))
    }
