"""How often the nodes in loops of TensorFlow 1 run, and which counters they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import frames as built
import pytest
import tensorflow as tf
from rewriting import module_of, v1

from amp.graph_rewrite.graph import frame_trips, frames, shapes

UNKNOWN = shapes.UNKNOWN_TRIPS
Test = Callable[[Any], Any]


def runs(build: Callable[[], object]) -> dict[str, int]:
    return frame_trips.frame_trips(module_of(built.proto(build)).main)


def loop(cond: Test, step: Test, start: Any, **options: Any) -> Any:
    x = v1.placeholder(tf.float32, [4, 8], name="x")
    body = lambda i, y: (step(i), tf.tanh(y, name="tanh"))  # noqa: E731
    test = lambda i, _: cond(i)  # noqa: E731
    return tf.while_loop(test, body, (start, x), name="loop", **options)


@pytest.mark.parametrize(
    ("cond", "step", "start", "count"),
    [
        (lambda i: i < 7, lambda i: i + 1, 0, 7),
        (lambda i: i <= 7, lambda i: 2 + i, 0, 4),
        (lambda i: i > 0, lambda i: i - 1, 5, 5),
        (lambda i: tf.greater(7, i), lambda i: i + 1, 1, 6),
        (lambda i: (i < 7) & (i < 3), lambda i: i + 1, 0, 3),
        (lambda i: i < tf.minimum(5, v1.placeholder(tf.int32, [])), lambda i: i + 1,
         0, 5),
        (lambda i: i < v1.placeholder(tf.int32, []), lambda i: i + 1, 0, UNKNOWN),
        (lambda i: i < 7, lambda i: i * 2, 1, UNKNOWN),
        (lambda i: i < 7, lambda i: 8 - i, 0, UNKNOWN),
    ],
)  # fmt: skip
def test_a_counter_and_its_limit_say_how_often(
    cond: Test, step: Test, start: int, count: int
) -> None:
    found = runs(lambda: loop(cond, step, tf.constant(start)))
    assert found["loop/tanh"] == count
    assert "x" not in found


def test_a_limit_on_the_trips_counts() -> None:
    found = runs(
        lambda: loop(lambda i: i < 9, lambda i: i + 1, 0, maximum_iterations=2)
    )
    assert found["loop/tanh"] == 2


@pytest.mark.parametrize("static", [True, False])
def test_a_limit_may_be_the_size_of_a_tensor(static: bool) -> None:
    def build() -> None:
        given = v1.placeholder(tf.float32, [6 if static else None, 2])
        rows = tf.raw_ops.Shape(input=given)[0]
        loop(lambda i: i < rows, lambda i: i + 1, tf.constant(0))

    assert runs(build)["loop/tanh"] == (6 if static else UNKNOWN)


def test_trips_of_nested_loops_multiply() -> None:
    found = runs(built.nested_loops)
    assert found["outer/inner/product"] == 3 * 2
    assert found["outer/ReverseV2"] == 3


def test_a_gradient_makes_the_trips_of_its_loop() -> None:
    graph = module_of(built.with_gradients(lambda: built.state_loop(5))).main
    found = frame_trips.frame_trips(graph)
    backward = [n for n in found if n.startswith("gradients") and "product_grad" in n]
    assert backward
    assert {found[name] for name in backward} == {5}


def test_counters_are_what_differs_on_every_trip() -> None:
    def build() -> None:
        body = lambda i, j, k: (i + 1, j - 2, k * 2)  # noqa: E731
        begin = [tf.constant(0), tf.constant(0), tf.constant(1)]
        tf.while_loop(lambda i, j, k: i < 3, body, begin)

    graph = module_of(built.proto(build)).main
    one, two, _ = frames.loop_variables(graph)
    assert frame_trips.counters(graph) == {*one.switches, *two.switches}
