"""`is_trained`: a module takes gradients, or a tape takes them of it, or neither."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from step_copies import Linear, X, module_of
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph.gradients_taken import is_gradient, is_trained
from amp.integration.runtime import definitions

WEIGHT = tf.constant([[1.0], [2.0], [3.0]])


def forward(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(x @ WEIGHT)


def by_input(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(forward(x))
    return tape.gradient(value, x)


def test_a_forward_pass_takes_none() -> None:
    assert not is_trained(module_of(tf.function(forward), X).graphs())


@pytest.mark.parametrize("step", [Linear(tf.reduce_sum).step, tf.function(by_input)])
def test_a_step_and_a_gradient_by_an_input_are_known(step: Any) -> None:
    module = module_of(step, X)
    assert is_trained(module.graphs())
    assert any(is_gradient(node) for node in module.main.nodes.values())


def test_both_functions_of_a_tape_outside_are_known() -> None:
    """Neither need have a node that is known: attributes tell."""
    function, context = tf.function(forward), context_lib.context()
    before = set(context.list_function_names())
    with tf.GradientTape() as tape:
        tape.watch(X)
        value = function(X)
    tape.gradient(value, X)
    made = set(context.list_function_names()) - before
    found = [
        name for name in made if "_forward_forward_" in name or "_backward_" in name
    ]
    assert len(found) == 2
    for name in found:
        assert is_trained(definitions.read(context, name).graphs())
