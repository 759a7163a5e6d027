"""`reach`: 16 bits reach what is downstream of a product, in whatever function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from rewriting import settled, spec, traced

from amp.graph_rewrite.rewrite import rewrite


def rules(fn: Callable[..., object], *specs: tf.TensorSpec) -> dict[str, str]:
    """By the last part of a node's name, the rule that decided."""
    report = rewrite(traced(fn, *specs)[0], settled()).report
    return {d.node.rpartition("/")[2].rpartition("::")[2]: d.rule
            for d in report.decisions}  # fmt: skip


FLAG = spec(dtype=tf.bool)


def test_a_branch_is_reached_from_its_caller() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, x)
        return tf.cond(flag, lambda: tf.tanh(y, name="inside"), lambda: y)

    assert rules(fn, spec(4, 4), FLAG)["inside"] == "follow"


def test_what_is_downstream_of_a_branch_is_reached_from_inside_it() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        y = tf.cond(flag, lambda: tf.matmul(x, x), lambda: tf.matmul(x, 2 * x))
        return tf.tanh(y, name="after")

    assert rules(fn, spec(4, 4), FLAG)["after"] == "follow"


def test_a_loop_is_reached_from_its_own_last_trip() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.matmul(tf.tanh(y, name="before"), x)

        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    assert rules(fn, spec(4, 4))["before"] == "follow"


def test_a_move_that_feeds_a_product_in_a_loop_is_reached_against_the_edges() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        w = tf.transpose(x, name="moved")
        body = lambda i, y: (i + 1, tf.matmul(y, w))  # noqa: E731
        found = tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])
        return found[1], tf.tanh(w, name="beside")

    found = rules(fn, spec(4, 4))
    assert found["moved"] == "move"
    assert found["beside"] == "unreached"  # not downstream of a product


def test_a_shape_is_read_off_what_is_16_bit_for_a_product() -> None:
    """Or a cast would have to be made only to read it."""

    def fn(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        w = tf.transpose(x, name="moved")
        return tf.matmul(w, w), tf.shape(w, name="read"), tf.shape(x, name="argument")

    found = rules(fn, spec(None, 4))
    assert (found["moved"], found["read"]) == ("move", "follow")
    assert found["argument"] == "unreached"


def test_a_value_that_ends_a_loop_stays_float32() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(y: tf.Tensor) -> tuple[tf.Tensor]:
            return (tf.matmul(y, x),)

        return tf.while_loop(lambda y: tf.reduce_max(y) > 0.1, body, [x])[0]

    module, _ = traced(fn, spec(4, 4))
    made = rewrite(module, settled()).graph
    loop = next(n for n in made.main.nodes.values() if n.op.endswith("While"))
    assert 14 not in loop.types("T")[:1]
