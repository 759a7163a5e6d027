"""What the tests of sessions share: graphs whose 16-bit arithmetic is exact.

All values are small integers, or eighths of them, so that whoever rounds to bfloat16 (8
significant bits) changes nothing, and a run under a policy equals one without bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import amp

v1 = tf.compat.v1
POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
X = np.array([[1, 2, 0, 1], [0, 1, 3, 1]], np.float32)
W = np.array([[1, 0, 2, 0], [0, 1, 1, 0], [1, 0, 0, 1], [2, 1, 0, 0]], np.float32)
Y = np.array([[4, 5, 2, 0], [5, 2, 2, 2]], np.float32)


def model(resource: bool = True, rate: float = 0.0) -> dict[str, Any]:
    """Two products with a ReLU between, a squared error, and one step of descent."""
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    y = v1.placeholder(tf.float32, [None, 4], name="y")
    step = v1.train.get_or_create_global_step()
    given = v1.constant_initializer(W)
    w = v1.get_variable("w", [4, 4], initializer=given, use_resource=resource)
    v = v1.get_variable("v", [4, 4], initializer=given, use_resource=resource)
    hidden = tf.nn.relu(tf.matmul(x, w, name="first"), name="hidden")
    out = tf.matmul(hidden, v, name="out")
    loss = tf.reduce_sum(tf.square(out - y), name="loss")
    descent = v1.train.GradientDescentOptimizer(rate)
    train = descent.minimize(loss, step, [v], name="train")
    names = ("x", "y", "step", "w", "v", "hidden", "out", "loss", "train")
    values = (x, y, step, w, v, hidden, out, loss, train)
    return dict(zip(names, values, strict=True))


def feed(parts: dict[str, Any]) -> dict[Any, Any]:
    return {parts["x"]: X, parts["y"]: Y}


def both(run: Callable[[], Any], policy: amp.Policy = POLICY) -> Any:
    """What `run` gives in a graph of its own, the same with and without a policy."""
    with tf.Graph().as_default():
        plain = run()
    before = len(amp.reports())
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        mixed = run()
    assert lowered(before), "nothing was rewritten"
    tf.nest.assert_same_structure(plain, mixed)
    for one, other in zip(tf.nest.flatten(plain), tf.nest.flatten(mixed), strict=True):
        np.testing.assert_array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
    return mixed


def lowered(since: int = 0) -> int:
    """Nodes in 16 bits, by the reports."""
    return sum(report.nodes_low for report in amp.reports()[since:])
