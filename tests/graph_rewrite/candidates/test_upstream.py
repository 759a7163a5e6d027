"""`Upstream`: what an operand is computed from, up to the results of products."""

from __future__ import annotations

import pytest
import tensorflow as tf
from between_layers import WIDTH
from rewriting import context_of, graph_def, module_of, rewritten, v1

from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.candidates.upstream import Upstream


def behind(of: str) -> dict[str, tuple[bool, bool]]:
    """By node, whether a reduction and a subtraction lie between it and another one."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
        product = tf.matmul(x, tf.ones([WIDTH, WIDTH]), name="product")
        copied = tf.identity(tf.cast(product, tf.bfloat16))
        value = tf.tanh(tf.cast(copied, tf.float32), name="value")
        mean = tf.reduce_mean(value, -1, keepdims=True, name="mean")
        tf.subtract(value, mean, name="centered")
        outer = tf.matmul(value[:, :1], value[:1, :], name="outer")
        tf.multiply(outer, mean, name="scaled")

    module = module_of(graph_def(build))
    typed = type_ports(module.main, context_of(module))
    edges = Upstream(module.main, typed).behind((of, 0))
    found = [(name, between) for (name, _), between in edges]
    assert len(dict(found)) == len(found)  # each is given once
    return dict(found)


def test_what_an_operand_is_computed_from_ends_at_products() -> None:
    found = behind("value")
    assert found == {"value": (False, False), "product": (False, False)}


def test_a_reduction_and_a_subtraction_between_are_told() -> None:
    found = behind("centered")
    assert found["mean"] == (False, True)
    assert found["value"] == (False, True)  # by the shortest of the two paths
    assert behind("mean")["product"] == (True, False)


def test_a_product_that_sums_nothing_ends_the_walk_too() -> None:
    found = behind("scaled")
    assert found["outer"] == (False, False)
    assert found["value"] == (True, False)  # by the mean


def test_sums_behind_what_joins_many_are_looked_at_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Close behind each sum there are all the tensors that are joined."""
    looked = []
    ends = Upstream.ends
    monkeypatch.setattr(Upstream, "ends", lambda *args: looked.append(1) or ends(*args))

    def steps(count: int) -> int:
        def build() -> None:
            x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
            rows = [tf.matmul(x, x) for _ in range(count)]
            joined, mean = tf.concat(rows, 0), tf.reduce_mean(x)
            for _ in range(count):
                tf.matmul(joined - mean, x)

        looked.clear()
        rewritten(graph_def(build))
        return len(looked)

    assert steps(400) < 2.5 * steps(200)
