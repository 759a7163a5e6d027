"""Runs in parts give what one run gives, and state is put back after each."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import amp
from amp.integration.comparing import paired_runs, traced
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.sides import Sides

POLICY = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")


def test_tensors_returned_in_parts_are_of_the_same_draw_and_state(monkeypatch):
    count = tf.Variable(0.0)

    @tf.function
    def fn(x):
        x = tf.matmul(x, x) + tf.random.normal([8, 8])
        return tf.matmul(x, x) + count.assign_add(1.0)

    call = traced.traced(fn, (tf.ones([8, 8]),), {}, POLICY)
    sides = Sides(call)
    edges = [each.edge for each in sides.pair.watched()]
    with PairedRuns(sides.pair, call.inputs, sides.state) as runs:
        whole = [*runs.values(sides.pair.plain, edges)]
        monkeypatch.setattr(paired_runs, "MOST", 1)
        parts = [*runs.values(sides.pair.plain, edges)]
    assert len(edges) > 3
    assert all(np.array_equal(*pair) for pair in zip(whole, parts, strict=True))
    assert count.numpy() == 0.0
