"""`settling_loops`: a loop to a tolerance ends where it ends in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

import amp
from amp.graph_rewrite.rewrite import rewrite

RANDOM = np.random.default_rng(0)
W = tf.constant((RANDOM.normal(0, 0.5, (64, 64)) / 8).astype("f4"))
X = RANDOM.normal(0, 1, (32, 64)).astype("f4")
MOST = 500
Fn = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def by_a_figure(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The body computes the difference, and the condition compares it."""

    def body(k: tf.Tensor, z: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, ...]:
        new = tf.tanh(tf.matmul(z, W) + x)
        return k + 1, new, tf.reduce_max(tf.abs(new - z))

    start = [tf.constant(0), tf.zeros_like(x), tf.constant(1.0)]
    k, z, _ = tf.while_loop(lambda k, z, d: (d > 1e-5) & (k < MOST), body, start)
    return k, z


def by_two_iterates(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The condition computes the difference of two loop variables."""

    def body(k: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return k + 1, new, tf.tanh(tf.matmul(new, W) + x)

    def goes_on(k: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return (tf.reduce_max(tf.abs(new - old)) > 1e-5) & (k < MOST)

    start = [tf.constant(0), tf.zeros_like(x), tf.ones_like(x)]
    k, _, z = tf.while_loop(goes_on, body, start)
    return k, z


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fn", [by_a_figure, by_two_iterates])
def test_a_loop_to_a_tolerance_ends_as_in_float32(fn: Fn, dtype: str) -> None:
    policy = amp.Policy(dtype=dtype, emulate=True, assignment="all", strict=True)
    want, found = tf.function(fn)(X), amp.twin(fn, X, policy=policy)(X)
    assert int(want[0]) < MOST
    assert int(found[0]) == int(want[0])
    np.testing.assert_array_equal(found[1], want[1])


def rules(fn: Fn, *specs: tf.TensorSpec) -> dict[str, str]:
    report = rewrite(traced(fn, *specs)[0], settled()).report
    return {d.node.rpartition("/")[2].rpartition("::")[2]: d.rule
            for d in report.decisions}  # fmt: skip


def test_a_loop_that_waits_for_a_figure_of_no_iterate_is_16_bit() -> None:
    """A loss, say: nothing in it is the difference of what the trips gave."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(y: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            new = tf.matmul(y, x, name="product")
            return new, tf.reduce_max(new)

        return tf.while_loop(lambda y, d: d > 1e-3, body, [x, tf.constant(1.0)])[0]

    assert rules(fn, spec(4, 4))["product"] == "compute"


def test_a_loop_of_so_many_trips_is_16_bit() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.matmul(y, x, name="product") - y

        return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1]

    assert rules(fn, spec(4, 4))["product"] == "compute"
