"""What reductions give where there is nothing to reduce, programs still know it by."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, low, rewritten, run, v1

SIDE = 8
IDS = [0, 1, 3, 3, 1, 0, 0, 3]  # of five segments two are empty


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("least", [False, True])
def test_an_empty_segment_has_the_limit_of_float32(least: bool, dtype: str) -> None:
    """Graph networks put 0 there; as the limit of 16 bits it would not be found."""
    reduce = tf.math.unsorted_segment_min if least else tf.math.unsorted_segment_max

    def build() -> None:
        x = v1.placeholder(tf.float32, [SIDE, SIDE], name="x")
        rows = reduce(tf.matmul(x, tf.eye(SIDE), name="product"), IDS, 5)
        empty = tf.abs(rows) >= tf.float32.max
        known = tf.where(empty, tf.zeros_like(rows), rows)
        tf.matmul(known, tf.eye(SIDE), name="y")

    proto = graph_def(build)
    twin = rewritten(proto, fetches=["y"], dtype=dtype)
    assert "product" in low(twin.report)
    # Values that both types hold.
    x = np.random.default_rng(0).integers(-8, 8, (SIDE, SIDE)).astype(np.float32)
    want, got = (run(g, ["y"], {"x": x})[0] for g in (proto, twin.graph))
    np.testing.assert_array_equal(got, want)
