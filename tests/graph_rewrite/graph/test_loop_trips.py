"""`loop_trips`: what a loop's condition and counters say, whatever they hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import spec, traced

import amp
from amp.graph_rewrite.graph import shapes
from amp.graph_rewrite.graph.loop_trips import LoopTrips

UNKNOWN = shapes.UNKNOWN_TRIPS
Test = Callable[[Any], Any]


def trips(cond: Test, step: Test, start: Any) -> int:
    """What is read of a loop with one counter."""

    def fn(x: tf.Tensor) -> Any:
        return tf.while_loop(
            lambda i, y: cond(i),
            lambda i, y: (step(i), tf.tanh(y)),
            [tf.constant(start), x],
        )

    module, _ = traced(fn, spec(4))
    (node,) = (n for n in module.main.nodes.values() if n.op.endswith("While"))
    return LoopTrips(module).of(module.main, node)


@pytest.mark.parametrize(
    ("cond", "step", "start", "count"),
    [
        (lambda i: i < 7, lambda i: i + 1, 0, 7),
        (lambda i: i < 7, lambda i: 2 + i, 0, 4),
        (lambda i: i <= 7, lambda i: i + 1, 0, 8),
        (lambda i: tf.greater(7, i), lambda i: i + 1, 1, 6),
        (lambda i: i > 0, lambda i: i - 1, 5, 5),
        (lambda i: i >= 0, lambda i: i + -1, 5, 6),
        (lambda i: tf.less(0, i), lambda i: i - 1, 5, 5),
        (lambda i: i < 2.5, lambda i: i + 1.0, 0.0, 3),
        (lambda i: i < 1.0, lambda i: i + 0.25, 0.5, 2),
        (lambda i: i < np.float64(3), lambda i: i + 1, np.float64(-2.5), 6),
        (lambda i: (i < 7) & (i < 3), lambda i: i + 1, 0, 3),
        (lambda i: (i < np.inf) & (i < 3), lambda i: i + 1, 0.0, 3),
    ],
)
def test_a_counter_and_its_limit_say_how_often(
    cond: Test, step: Test, start: Any, count: int
) -> None:
    ran, value = 0, np.asarray(start)
    while cond(value):
        ran, value = ran + 1, step(value)
    assert ran == count
    assert trips(cond, step, start) == count


@pytest.mark.parametrize(
    ("cond", "step", "start"),
    [
        (lambda i: i < np.inf, lambda i: i + 1, 0.0),
        (lambda i: i > -np.inf, lambda i: i - 1, 0.0),
        (lambda i: i < np.nan, lambda i: i + 1, 0.0),
        (lambda i: i < 1.0, lambda i: i + 1, -np.inf),
        (lambda i: i < 9.0, lambda i: i + np.inf, 0.0),
        (lambda i: i < 9.0, lambda i: i + np.nan, 0.0),
        (lambda i: i < np.finfo(np.float64).max, lambda i: i + 1, np.float64(-1e308)),
        (lambda i: i < np.float64(1e300), lambda i: i + 1e-300, np.float64(0)),
        (lambda i: i < sys.maxsize, lambda i: i + 1, np.int64(0)),
        (lambda i: i < -3, lambda i: i + 1, 0),  # never runs
        (lambda i: i > 1e-6, lambda i: i * 0.5, 1.0),  # no counter: it converges
        (lambda i: i > 1e-6, lambda i: i / 2, 1.0),
        (lambda i: i < 9, lambda i: i - 1, 0),  # ends when the integer overflows
        (lambda i: i < 9, lambda i: 1 - i, 0),
        (lambda i: i, tf.logical_not, True),
        (lambda i: i < 9 + 0j.real, lambda i: i + 1, np.nan),
        (lambda i: tf.strings.length(i) < 9, lambda i: i + "a", ""),
    ],
)
def test_what_tells_nothing_counts_as_unknown(
    cond: Test, step: Test, start: Any
) -> None:
    assert trips(cond, step, start) == UNKNOWN


def test_maximum_iterations_are_read_and_a_limit_from_outside_is_not() -> None:
    def fn(x: tf.Tensor, limit: tf.Tensor) -> Any:
        body = lambda i, y: (i + 1.0, tf.tanh(y))  # noqa: E731
        given = [tf.constant(0.0), x]
        one = tf.while_loop(lambda i, y: i < limit, body, given, maximum_iterations=6)
        return one, tf.while_loop(lambda i, y: i < limit, body, given)

    module, _ = traced(fn, spec(4), spec())
    loops = [n for n in module.main.nodes.values() if n.op.endswith("While")]
    found = {LoopTrips(module).of(module.main, node) for node in loops}
    assert found == {6, UNKNOWN}


def test_a_limit_without_end_does_not_stop_a_rewrite() -> None:
    def fn(x: tf.Tensor) -> Any:
        return tf.while_loop(
            lambda i, y: (i < np.inf) & (tf.reduce_sum(y) < 9.0),
            lambda i, y: (i + 1, tf.matmul(y, y) + 1.0),
            [tf.constant(0.0), x],
        )

    policy = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
    x = tf.zeros([2, 2])
    assert amp.twin(fn, x, policy=policy)(x)[0] == fn(x)[0] == 2.0


def in_order(fn: Callable[..., Any], *specs: tf.TensorSpec) -> list[int]:
    """The trips of a function's loops, each after those that it reads."""
    module, _ = traced(fn, *specs)
    trips, nodes = LoopTrips(module), module.main.nodes
    loops = (nodes[name] for name in module.main.order)
    return [trips.of(module.main, n) for n in loops if n.op.endswith("While")]


def looped(x: tf.Tensor, start: Any, limit: Any) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.while_loop(
        lambda i, y: i < limit, lambda i, y: (i + 1, tf.tanh(y)), [start, x]
    )


def test_the_loop_of_a_gradient_makes_as_many_trips_as_the_loop() -> None:
    def fn(x: tf.Tensor) -> Any:
        (slope,) = tf.gradients(looped(x, tf.constant(0), 7)[1], x)
        return slope, tf.gradients(slope, x)

    found = in_order(fn, spec(4))
    assert len(found) >= 3
    assert set(found) == {7}


def test_a_counter_may_start_where_another_loop_left_it() -> None:
    def fn(x: tf.Tensor) -> Any:
        i, y = looped(x, tf.constant(0), 4)
        return looped(y, i, 9)

    assert in_order(fn, spec(4)) == [4, 5]


def test_many_loops_in_a_row_are_each_read_once() -> None:
    def fn(x: tf.Tensor) -> Any:
        i = tf.constant(0)
        for index in range(40):
            i, x = looped(x, i, 2 * index + 2)
        return x

    assert in_order(fn, spec(4)) == [2] * 40


def test_a_limit_may_be_a_known_size_or_the_smaller_of_two() -> None:
    def fn(x: tf.Tensor, limit: tf.Tensor) -> Any:
        length = tf.shape(tf.transpose(x))[0]
        _, y = looped(x, tf.constant(0), length)
        return looped(y, tf.constant(0), tf.minimum(limit, 3))

    limit = tf.TensorSpec([], tf.int32)
    assert in_order(fn, spec(4, 6), limit) == [6, 3]


def test_what_is_added_may_come_from_outside_as_it_does_in_autograph() -> None:
    def fn(x: tf.Tensor) -> Any:
        y = x
        for _ in tf.range(7):
            y = tf.tanh(y)
        for _ in tf.range(2, tf.shape(x)[0], 3):
            y = tf.tanh(y)
        return tf.gradients(y, x)

    assert sorted(in_order(fn, spec(12))) == [4, 4, 7, 7]


def test_what_is_added_and_changes_tells_nothing() -> None:
    def fn(x: tf.Tensor) -> Any:
        return tf.while_loop(
            lambda i, by, y: i < 9,
            lambda i, by, y: (i + by, by + 1, tf.tanh(y)),
            [tf.constant(0), tf.constant(1), x],
        )

    assert in_order(fn, spec(4)) == [UNKNOWN]
