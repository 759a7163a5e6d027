"""`unscale_markers`: what is downstream of a marker, in all functions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import tensorflow as tf
from frames import version_1
from rewriting import settled, spec, traced, v1

from amp.graph_rewrite import rewrite
from amp.graph_rewrite.graph import ir, serde, unscale_markers
from amp.integration.training import markers


def unscaled(y: tf.Tensor) -> tf.Tensor:
    with markers.attribute_scope(ir.UNSCALE):
        return tf.multiply(y, 0.5, name="unscale")


def behind(fn: object, *specs: tf.TensorSpec) -> dict[str, frozenset[str]]:
    module, _ = traced(fn, *specs)
    return unscale_markers.behind_markers(module)


def in_main(fn: Callable[..., object], *specs: tf.TensorSpec) -> frozenset[str]:
    module, _ = traced(fn, *specs)
    return unscale_markers.behind_markers(module)[module.main.name]


def ops_low(fn: object, *specs: tf.TensorSpec) -> set[str]:
    """In float16: `inner_gradients` tells what is otherwise in bfloat16."""
    module, _ = traced(fn, *specs)
    report = rewrite.rewrite(module, settled(dtype="float16", emulate=True)).report
    low = {d.node for d in report.decisions if d.dtype != "float32"}
    return {re.split("/|::", name)[-1] for name in low}


def test_without_a_marker_nothing_is_behind_one() -> None:
    found = behind(lambda x: tf.matmul(x, x), spec(4, 4))
    assert set(found.values()) == {frozenset()}


def test_a_marker_taints_what_is_downstream_and_nothing_else() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, x, name="product")
        return tf.tanh(unscaled(y), name="after") + tf.exp(y, name="beside")

    found = in_main(fn, spec(4, 4))
    assert {"unscale", "after"} <= found
    assert not {"product", "beside"} & found


def test_a_marker_inside_a_called_function_taints_the_caller() -> None:
    inner = tf.function(lambda x: (unscaled(x), tf.abs(x)))

    def fn(x: tf.Tensor) -> tf.Tensor:
        one, other = inner(tf.matmul(x, x, name="product"))
        return tf.matmul(one, one, name="tainted"), tf.matmul(other, x, name="free")

    low = ops_low(fn, spec(4, 4))
    assert "free" in low  # the other result is clean
    assert "product" in low
    assert "tainted" not in low


def test_a_marked_argument_taints_the_function_that_is_called() -> None:
    inner = tf.function(
        lambda x, y: (tf.matmul(x, x, name="a"), tf.matmul(y, y, name="b"))
    )
    low = ops_low(lambda x: inner(unscaled(x), x), spec(4, 4))
    assert "b" in low
    assert "a" not in low


def test_a_marker_carried_around_a_loop_taints_the_whole_loop_variable() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(
            i: tf.Tensor, y: tf.Tensor, z: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            product = tf.matmul(y, y, name="tainted")  # runs before the marker, once
            return i + 1, unscaled(product), tf.matmul(z, z, name="free")

        _, y, z = tf.while_loop(lambda i, y, z: i < 3, body, [tf.constant(0), x, x])
        return tf.matmul(y, y, name="after"), tf.matmul(z, z, name="clean")

    low = ops_low(fn, spec(4, 4))
    assert {"free", "clean"} <= low
    assert not {"tainted", "after"} & low


def test_a_condition_taints_no_loop_variable() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        limit = unscaled(tf.reduce_sum(x))
        _, y = tf.while_loop(
            lambda y, z: tf.reduce_sum(unscaled(y)) < 3.0,
            lambda y, z: (tf.matmul(y, y, name="free"), z),
            [x, limit],
        )
        return y

    assert "free" in ops_low(fn, spec(4, 4))


@pytest.mark.parametrize("marked", [True, False])
def test_a_marker_in_one_branch_taints_the_result_of_both(marked: bool) -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        one = tf.cond(
            flag, lambda: unscaled(x) if marked else tf.abs(x), lambda: tf.matmul(x, x)
        )
        return tf.matmul(one, one, name="after")

    low = ops_low(fn, spec(4, 4), spec(dtype=tf.bool))
    assert ("after" in low) is not marked


def before(fn: object, *specs: tf.TensorSpec) -> set[str]:
    """The last parts of the names of what markers are computed from."""
    module, _ = traced(fn, *specs)
    found = unscale_markers.before_markers(module)
    return {name.rpartition("/")[2] for names in found.values() for name in names}


def test_without_a_marker_nothing_is_before_one() -> None:
    assert before(lambda x: tf.matmul(x, x), spec(4, 4)) == set()


def test_what_a_marker_is_computed_from_is_before_it_and_nothing_else() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, x, name="product")
        return tf.tanh(unscaled(y), name="after") + tf.exp(y, name="beside")

    found = before(fn, spec(4, 4))
    assert {"product", "unscale"} <= found
    assert not {"after", "beside"} & found


@pytest.mark.parametrize("inside", [True, False])
def test_a_marker_is_computed_from_what_a_call_gives_or_is_given(inside: bool) -> None:
    def inner(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        one, other = tf.abs(x, name="one"), tf.abs(y, name="other")
        return unscaled(one) if inside else one, other

    called = tf.function(inner)

    def fn(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        given, unread = tf.exp(x, name="given"), tf.exp(y, name="unread")
        found, rest = called(given, unread)
        return found if inside else unscaled(found), rest

    found = before(fn, spec(4, 4), spec(4, 4))
    assert {"given", "one", "unscale"} <= found
    assert not {"unread", "other"} & found


def test_a_marker_is_computed_from_earlier_trips_of_its_loop() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(
            i: tf.Tensor, y: tf.Tensor, z: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            moved = tf.tanh(unscaled(y), name="moved")
            return i + 1, moved, tf.exp(z, name="beside")

        start = tf.abs(x, name="start")
        loop = tf.while_loop(lambda i, y, z: i < 3, body, [tf.constant(0), start, x])
        return tf.sinh(loop[1], name="after"), loop[2]

    found = before(fn, spec(4, 4))
    assert {"moved", "start", "unscale"} <= found
    assert not {"beside", "after"} & found


def test_a_marker_is_computed_from_earlier_trips_of_a_loop_of_tensorflow_1() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4, 4], name="x")

        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.tanh(unscaled(y), name="moved")

        with version_1():
            v1.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])
    module = serde.read_graph(graph.as_graph_def())
    found = unscale_markers.before_markers(module)[module.main.name]
    assert {"while/moved", "while/unscale", "x"} <= found


def test_what_a_loop_of_tensorflow_1_carries_on_is_downstream_of_a_marker() -> None:
    """In the next trip, and of another variable of the loop."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4, 4], name="x")

        def body(
            i: tf.Tensor, y: tf.Tensor, z: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return i + 1, tf.tanh(z, name="next"), unscaled(tf.abs(x, name="beside"))

        with version_1():
            v1.while_loop(lambda i, *_: i < 3, body, [tf.constant(0), x, x])
    module = serde.read_graph(graph.as_graph_def())
    found = unscale_markers.behind_markers(module)[module.main.name]
    assert {"while/unscale", "while/next", "while/Exit_1"} <= found
    assert not {"while/beside", "while/Exit", "x"} & found


def test_a_marker_in_a_condition_is_computed_from_the_trip_before() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda y: tf.reduce_sum(unscaled(y)) < 3.0,
            lambda y: tf.matmul(y, y, name="moved"),
            [x],
        )

    assert {"unscale", "moved"} <= before(fn, spec(4, 4))
