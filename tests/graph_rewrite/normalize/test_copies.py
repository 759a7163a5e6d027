"""`copies`: a copy gives what is wanted of a step and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import step_copies
import tensorflow as tf
from rewriting import settled
from step_copies import Linear, X, module_of
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import copies, wanted_gradients
from amp.graph_rewrite.normalize.wanted import Wanted
from amp.graph_rewrite.rewrite import prepare
from amp.integration.runtime import definitions


def call(module: ir.Module, inputs: list[Any]) -> list[np.ndarray]:
    return [out.numpy() for out in step_copies.call(module, inputs)]


def copy_of(module: ir.Module) -> tuple[ir.Module, Wanted]:
    wanted = wanted_gradients.gradients(module)
    return copies.computing(module, wanted, f"{module.main.name}_c"), wanted


def test_a_copy_gives_the_gradients_and_changes_nothing() -> None:
    linear = Linear(tf.reduce_sum)
    module = module_of(linear.step, X)
    copy, wanted = copy_of(module)
    (grad,) = call(copy, linear.inputs())
    np.testing.assert_array_equal(grad[:, 0], [1.5, 2.0, -1.0])
    np.testing.assert_array_equal(linear.weight[:, 0], [1.0, 2.0, 3.0])
    assert int(linear.count) == 0
    assert not wanted.taken
    assert not wanted.scaled
    kept = {node.op for node in copy.main.nodes.values()}
    assert not kept & {"AssignSubVariableOp", "AssignAddVariableOp", "PrintV2"}


def test_a_step_with_a_loss_scale_takes_it_as_an_argument() -> None:
    linear = Linear(tf.reduce_sum)
    with amp.mixed_precision_scope(dtype="float16", emulate=True, loss_scale="dynamic"):
        concrete = linear.step.get_concrete_function(X)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    module = prepare(module, settled(emulate=True)).in_float32("__scaled")
    copy, wanted = copy_of(module)
    assert wanted.scaled
    inputs = [X, *concrete.captured_inputs, tf.constant(8.0)]
    np.testing.assert_array_equal(call(copy, inputs)[0][:, 0], [12.0, 16.0, -8.0])


def test_a_batch_is_taken_once_and_passed_on() -> None:
    batches = iter(tf.data.Dataset.from_tensor_slices([X, 2 * X, 3 * X]))
    weight = tf.Variable([[1.0], [2.0], [3.0]])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(next(batches) @ weight)
        (grad,) = tape.gradient(value, [weight])
        weight.assign_sub(grad)
        return value

    module = module_of(step)
    captured = step.get_concrete_function().captured_inputs
    copy, wanted = copy_of(module)
    assert [number for _, number in wanted.taken] == [ir.FLOAT]
    recorder = copies.recorded(module, wanted, "recorder")
    value, batch = call(recorder, list(captured))
    np.testing.assert_array_equal(batch, X)
    assert value == float(tf.reduce_sum(X @ [[1.0], [2.0], [3.0]]))
    for _ in range(2):
        (grad,) = call(copy, [*captured, tf.constant(batch)])
        np.testing.assert_array_equal(grad[:, 0], [1.5, 2.0, -1.0])
    np.testing.assert_array_equal(next(batches), 2 * X)


def noise(y: tf.Tensor) -> tf.Tensor:
    return y * tf.random.normal(y.shape)


def noise_in_a_branch(y: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(y) > -1e9, lambda: noise(y), lambda: y)


def noise_in_a_loop(y: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, noise(z)), [0, y])[1]


def noise_in_a_branch_of_a_loop(y: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, noise_in_a_branch(z)

    return tf.while_loop(lambda i, _: i < 3, body, [0, y])[1]


@pytest.mark.parametrize(
    "noisy",
    [noise, noise_in_a_branch, noise_in_a_loop, noise_in_a_branch_of_a_loop],
)
def test_random_numbers_of_a_copy_are_those_of_any_other_copy(
    noisy: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    linear = Linear(lambda y: tf.reduce_sum(noisy(y)))
    module = module_of(linear.step, X)
    wanted = wanted_gradients.gradients(module)
    assert not wanted.taken
    inputs = linear.inputs()
    first, second = (
        call(copies.computing(module, wanted, f"noise_{i}"), inputs) for i in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0]).max() > 0
    assert copies.is_random(module)


def checked(y: tf.Tensor) -> tf.Tensor:
    return tf.debugging.check_numerics(y * 1e38 * 1e38, "beyond the range")


def checked_in_a_branch(y: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.size(y) > 0, lambda: checked(y), lambda: y)


def printed(y: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.Print(y * 1e38 * 1e38, [y])


@pytest.mark.parametrize("watched", [checked, checked_in_a_branch, printed])
def test_a_copy_watches_nothing_so_that_what_passes_the_range_is_judged(
    watched: Callable[[tf.Tensor], tf.Tensor], capfd: pytest.CaptureFixture[str]
) -> None:
    linear = Linear(lambda y: tf.reduce_sum(watched(y)))
    copy, wanted = copy_of(module_of(linear.step, X))
    assert not wanted.taken
    (grad,) = call(copy, linear.inputs())
    assert not np.isfinite(grad).all()
    assert "[[" not in capfd.readouterr().err


def test_it_is_known_which_nodes_compute_some_gradients_alone() -> None:
    first, second = (tf.Variable(tf.ones([3, 3]), name=n) for n in ("a", "b"))

    @tf.function
    def step(x: tf.Tensor) -> None:
        weights = [first, second]
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.tanh(x @ first) @ second)
        for weight, grad in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(grad)

    module = module_of(step, X)
    wanted = wanted_gradients.gradients(module)
    grads = [read.edge(module.main)[0] for read in wanted.reads]
    of = [copies.computing_only(module, wanted, [i]) for i in range(2)]
    for number, name in enumerate(grads):
        assert name in of[number]
    assert not of[0] & of[1]
    both = copies.computing_only(module, wanted, [0, 1])
    # The seed of the loss is upstream of both, and so of neither alone.
    assert both > of[0] | of[1]
