"""A gradient that a further gradient is taken of is no update, past a product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import rules, settled, spec, traced

from amp.graph_rewrite import rewrite
from amp.graph_rewrite.graph import ir
from amp.integration.training import markers


def marked(gradient: tf.Tensor) -> tf.Tensor:
    with markers.attribute_scope(ir.UNSCALE):
        return tf.identity(gradient)


def low(fn: Callable[..., object], dtype: str = "bfloat16") -> set[str]:
    """The last parts of the names of what becomes 16-bit."""
    module, _ = traced(fn, spec(16, 16), spec(16, 16))
    emulate = dtype == "float16"
    found = rewrite.rewrite(module, settled(dtype=dtype, emulate=emulate)).report
    names = (d.node for d in found.decisions if d.dtype != "float32")
    return {name.replace("::", "/").rpartition("/")[2] for name in names}


def inner_step(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Meta-learning: a step by one gradient, of which another is taken."""
    first = marked(tf.matmul(x, w, name="first"))
    moved = tf.subtract(w, 0.1 * first, name="moved")
    second = tf.matmul(x, moved, name="second")
    return tf.subtract(w, marked(tf.nn.relu(second, name="relu")), name="update")


def test_a_product_of_a_step_that_a_gradient_is_taken_of_may_be_16_bit() -> None:
    found = low(inner_step)
    assert {"first", "second", "relu"} <= found
    assert not {"moved", "update"} & found


def test_in_float16_it_is_float32_as_it_has_no_scale() -> None:
    found = low(inner_step, "float16")
    assert "first" in found
    assert not {"second", "relu", "moved", "update"} & found


def test_a_product_of_an_update_is_float32() -> None:
    """An optimizer may multiply gradients, as by the inverse of a preconditioner."""

    def fn(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        gradient = marked(tf.matmul(x, w, name="product"))
        return tf.subtract(w, tf.matmul(gradient, gradient, name="in_the_update"))

    found = low(fn)
    assert "product" in found
    assert "in_the_update" not in found


def test_what_follows_the_further_gradient_is_an_update_again() -> None:
    def fn(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        last = inner_step(w, x)
        return tf.matmul(last, x, name="behind_the_update")

    assert "behind_the_update" not in low(fn)


@pytest.mark.parametrize("trips", [1, 3])
def test_a_sample_that_gradients_move_goes_through_a_model_at_each_trip(
    trips: int,
) -> None:
    def fn(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            slope = marked(tf.matmul(x, w, name="model"))
            return i + 1, tf.subtract(x, 0.1 * slope, name="sample")

        loop = tf.while_loop(lambda i, x: i < trips, body, [tf.constant(0), x])
        return loop[1]

    found = low(fn)
    assert "model" in found
    assert "sample" not in found


def test_the_reason_of_what_stays_float32_is_the_marker() -> None:
    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.abs(marked(tf.matmul(x, w)), name="after")

    module, _ = traced(fn, spec(16, 16), spec(16, 16))
    assert rules(rewrite.rewrite(module, settled()).report)["after"] == "unscale"
