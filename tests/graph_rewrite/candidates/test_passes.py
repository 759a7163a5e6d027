"""`passes`: which nodes are in a backward pass, and where products are in each pass."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from rewriting import context_of, spec, traced

from amp.graph_rewrite.candidates import passes as passes_lib
from amp.graph_rewrite.candidates.analysis import analyze
from amp.graph_rewrite.candidates.passes import Passes
from amp.graph_rewrite.normalize.inline import inline

WIDTH = 4


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Analyzes a function; gives the fields of its passes, by node name."""

    def analyzed(fn: Any, *specs: Any) -> dict[str, Any]:
        kept: list[Passes] = []
        whole = passes_lib.passes

        def passes(*args: Any) -> Passes:
            kept.append(whole(*args))
            return kept[-1]

        monkeypatch.setattr("amp.graph_rewrite.candidates.analysis.passes", passes)
        module = inline(traced(fn, *specs)[0])
        analyze(module, lambda use: context_of(module))
        (one,) = kept
        fields = ("downstream", "upstream", "opening")
        return {
            "order": {n: k for part in one.order.values() for n, k in part.items()},
            "differentiated": one.differentiated,
            **{f: set().union(*getattr(one, f).values()) for f in fields},
        }

    return analyzed


def layer(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.tanh(tf.matmul(x, tf.ones([WIDTH, WIDTH]), name=name), name=f"{name}_act")


def step(x: tf.Tensor) -> tf.Tensor:
    """Two layers, each read twice, so that their gradients are added up."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, "one")
        y = layer(y, "two") + y
        loss = tf.reduce_mean(tf.square(y, name="square"), name="loss")
    return tape.gradient(loss, x)


def test_what_adds_up_gradients_is_in_their_pass(found: Any) -> None:
    orders = found(tf.function(step), spec(WIDTH, WIDTH))["order"]
    assert orders["AddN"] == 1
    assert {"one", "two_act", "square", "loss"}.isdisjoint(orders)
    assert all(orders[name] == 1 for name in orders)


def test_a_cast_of_added_gradients_is_in_their_pass(found: Any) -> None:
    """A rewrite makes some, and what it made is analyzed again."""
    fn = tf.function(lambda x: tf.cast(step(x), tf.bfloat16, name="cast"))
    assert found(fn, spec(WIDTH, WIDTH))["order"]["cast"] == 1


def test_products_are_found_upstream_and_downstream(found: Any) -> None:
    one = found(tf.function(step), spec(WIDTH, WIDTH))
    assert {"one_act", "two_act", "square", "loss"} <= one["downstream"]
    assert {"one_act"} <= one["upstream"]
    assert {"two_act", "square", "loss"}.isdisjoint(one["upstream"])


def test_the_opening_ends_at_the_first_products_and_sums(found: Any) -> None:
    one = found(tf.function(step), spec(WIDTH, WIDTH))
    opens, behind = (n for n in sorted(one["order"]) if "TanhGrad" in n)
    assert opens in one["opening"]
    assert behind in one["downstream"] - one["opening"]


def test_a_gradient_of_a_called_function_is_one_pass_with_its_callers(
    found: Any,
) -> None:
    called = tf.function(lambda x: layer(x, "called"))

    def outer(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(called(called(x)))
        return tape.gradient(loss, x)

    one = found(tf.function(outer), spec(WIDTH, WIDTH))
    assert set(one["order"].values()) == {1}
    grads = {n for n in one["order"] if n.endswith("TanhGrad")}
    assert len(grads) == 2
    assert len(grads & one["downstream"]) == 1  # the other one opens the pass


def test_loops_are_walked_from_trip_to_trip(found: Any) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, layer(y, "inside")

        y = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1]
        return tf.gradients(tf.square(y, name="square"), x)[0]

    one = found(tf.function(fn), spec(WIDTH, WIDTH))
    assert "while/inside_act" in one["upstream"] & one["downstream"]
    assert "square" in one["downstream"] - one["upstream"]


def test_what_a_loop_was_given_may_be_what_it_returns(found: Any) -> None:
    def fn(x: tf.Tensor, trips: tf.Tensor) -> tf.Tensor:
        ones = tf.ones([WIDTH, WIDTH])
        start = [tf.constant(0), layer(x, "one")]
        body = lambda i, y: (i + 1, ones)  # noqa: E731
        y = tf.while_loop(lambda i, y: i < trips, body, start)[1]
        return tf.tanh(y, name="after")

    one = found(tf.function(fn), spec(WIDTH, WIDTH), spec(dtype=tf.int32))
    assert "after" in one["downstream"]


def both_passes(fn: Any) -> list[Any]:
    """A function that is differentiated from outside, and that of its gradient."""
    made = tf.function(fn).get_concrete_function(spec(WIDTH, WIDTH))
    with tf.GradientTape() as tape:
        x = tf.ones([WIDTH, WIDTH])
        tape.watch(x)
        made(x)
    each = made._delayed_rewrite_functions.forward_backward()
    return [
        types.SimpleNamespace(get_concrete_function=lambda *_, f=f: f) for f in each
    ]


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_function_differentiated_from_outside_is_told_by_its_attributes(
    differentiated: bool, found: Any
) -> None:
    fn = lambda x: layer(x, "only")  # noqa: E731
    fn = both_passes(fn)[0] if differentiated else tf.function(fn)
    assert found(fn, spec(WIDTH, WIDTH))["differentiated"] is differentiated


def test_so_is_a_function_that_computes_a_gradient_whatever_its_nodes_are_called(
    found: Any,
) -> None:
    @tf.custom_gradient
    def named(x: tf.Tensor) -> Any:
        def backward(dy: tf.Tensor) -> tf.Tensor:
            with tf.name_scope("own/"):
                return tf.multiply(dy, 2.0, name="mul")

        return tf.tanh(x), backward

    _, backward = both_passes(lambda x: layer(named(x), "only"))
    assert found(backward)["order"]["own/mul"] == 1
