"""AutoGraph converts the user's code behind code of ours, and not that code."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import amp
from amp.integration import conversion

status = tf.__internal__.autograph.control_status_ctx


def row(v: Any) -> Any:
    if tf.reduce_sum(v) > 0.0:
        return v * 2.0
    return v


@pytest.mark.parametrize("inside", [True, False], ids=["in a scope", "after one"])
def test_code_behind_a_gradient_is_converted(inside: bool) -> None:
    weights = tf.Variable(tf.ones([8, 4]))

    @tf.recompute_grad
    def block(x: Any) -> Any:  # runs again where the gradient is taken
        return tf.map_fn(row, x @ weights)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(x))
        return tape.gradient(loss, weights)

    x, policy = tf.ones([3, 8]), amp.Policy(dtype="float16", emulate=True, strict=True)
    with amp.mixed_precision_scope(policy):
        found = step(x) if inside else None
    found = found if inside else step(x)
    assert found.numpy().tolist() == [[6.0] * 4] * 8


def test_code_in_a_vectorized_map_is_converted() -> None:
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        pass

    def each(v: Any) -> Any:
        return tf.map_fn(row, v[None])[0]

    found = tf.function(lambda x: tf.vectorized_map(each, x))(tf.ones([3, 2]))
    assert found.numpy().tolist() == [[2.0] * 2] * 3


def test_only_what_exempt_code_hooks_has_the_status_of_its_caller() -> None:
    seen = []

    def original() -> None:
        seen.append(status())

    @conversion.exempt
    def hook() -> Any:
        conversion.as_called(original)()
        seen.append(status())
        return conversion.callers()

    @tf.function
    def caller() -> Any:
        seen.append(status())
        assert hook() is status()

    caller.get_concrete_function()
    here, behind, inside = seen
    assert here is behind
    assert here.status.name == "ENABLED"
    assert inside.status.name == "DISABLED"
    assert hook() is conversion.callers() is status()


def test_an_error_leaves_the_status_as_it_was() -> None:
    @conversion.exempt
    @conversion.as_called
    def fails() -> None:
        raise KeyError

    before = status()
    with pytest.raises(KeyError):
        fails()
    assert status() is before
