"""`gradients_only`: a copy gives the step's gradients and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.normalize import gradients_only
from amp.graph_rewrite.normalize.gradients_only import Gradients, NotRepeatable
from amp.graph_rewrite.rewrite import prepare
from amp.integration.runtime import definitions
from amp.integration.training import markers


def module_of(step: Any, *args: Any) -> ir.Module:
    """A step in float32, calls inlined."""
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        concrete = step.get_concrete_function(*args)
    context = context_lib.context()
    module = definitions.read(context, concrete.name.decode())
    prepared = prepare(module, settled(emulate=True))
    return prepared.in_float32(definitions.new_suffix())


def call(module: ir.Module, inputs: list[Any]) -> list[np.ndarray]:
    lookup = op_schema.lookup_of(module)
    context = context_lib.context()
    for graph in (*module.functions.values(), module.main):
        if not context.has_function(graph.name):
            context.add_function_def(serde.write_function(graph, lookup))
    name, count = module.main.name.encode(), len(module.main.results)
    return [out.numpy() for out in context.call_function(name, inputs, count)]


class Linear:
    """A step with a weight of three rows, its update and a counter."""

    def __init__(self, loss: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.weight = tf.Variable([[1.0], [2.0], [3.0]])
        self.count = tf.Variable(0)

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss(x @ self.weight)
            (grad,) = tape.gradient(value, [self.weight])
            self.weight.assign_sub(grad)
            self.count.assign_add(1)
            tf.print("stepped", output_stream="file:///dev/null")
            return value

        self.step = step

    def inputs(self) -> list[Any]:
        return [X, *self.step.get_concrete_function(X).captured_inputs]


X = tf.constant([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])


def copy_of(module: ir.Module) -> tuple[ir.Module, Gradients]:
    wanted = gradients_only.gradients(module)
    return gradients_only.gradients_only(
        module, wanted, f"{module.main.name}_c"
    ), wanted


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
    recorder = gradients_only.recorded(module, wanted, "recorder")
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
    wanted = gradients_only.gradients(module)
    assert not wanted.taken
    inputs = linear.inputs()
    first, second = (
        call(gradients_only.gradients_only(module, wanted, f"noise_{i}"), inputs)
        for i in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0]).max() > 0
    assert gradients_only.is_random(module)


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


@pytest.mark.parametrize("in_loop", [False, True])
def test_what_cannot_be_repeated_is_named(in_loop: bool) -> None:
    counted = tf.Variable(1.0)

    def counts(y: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, z * counted.assign_add(1.0)

        if in_loop:
            y = tf.while_loop(lambda i, _: i < 3, body, [0, y])[1]
            return tf.reduce_sum(y)
        return tf.reduce_sum(y)

    linear = Linear(counts)
    module = module_of(linear.step, X)
    if not in_loop:
        assert gradients_only.gradients(module).markers
        return
    with pytest.raises(NotRepeatable, match=r"node \S+ \(While\) cannot run twice"):
        gradients_only.gradients(module)


def test_a_gradient_from_python_is_recorded_with_one_loss_scale_and_so_not_at_all():
    def squared(y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.py_function(tf.square, [y], tf.float32))

    linear = Linear(squared)
    with amp.mixed_precision_scope(dtype="float16", emulate=True, loss_scale="dynamic"):
        concrete = linear.step.get_concrete_function(X)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    module = prepare(module, settled(emulate=True)).in_float32("__python")
    with pytest.raises(NotRepeatable, match=r"node \S*EagerPyFunc cannot run twice"):
        gradients_only.gradients(module)
    assert gradients_only.gradients(module_of(linear.step, X)).taken  # no scale


def test_a_function_without_gradients_says_so() -> None:
    module = module_of(tf.function(lambda x: x @ tf.ones([3, 3])), X)
    with pytest.raises(NotRepeatable, match="it has no gradients of variables"):
        gradients_only.gradients(module)


def test_gradients_in_a_loop_are_said_to_be_there() -> None:
    weight = tf.Variable([[1.0], [2.0], [3.0]])

    @tf.function
    def steps(x: tf.Tensor) -> None:
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(x @ weight)
            (grad,) = tape.gradient(value, [weight])
            weight.assign_sub(grad)

    with pytest.raises(NotRepeatable, match="computed in function .*, not in it"):
        gradients_only.gradients(module_of(steps, X))


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
    wanted = gradients_only.gradients(module)
    grads = [module.main.nodes[marker].inputs[0][0] for marker in wanted.markers]
    of = [gradients_only.computing_only(module, wanted, [i]) for i in range(2)]
    for number, name in enumerate(grads):
        assert name in of[number]
    assert not of[0] & of[1]
    both = gradients_only.computing_only(module, wanted, [0, 1])
    # The seed of the loss is upstream of both, and so of neither alone.
    assert both > of[0] | of[1]


def test_a_marked_node_that_reads_nothing_is_no_gradient() -> None:
    """What is computed of a constant where a gradient is unscaled may become one."""
    weight = tf.Variable([[1.0], [2.0], [3.0]])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum((x @ weight) ** 2)
        with markers.attribute_scope(ir.UNSCALE):
            ones = tf.constant([[1.0], [1.0], [1.0]])
        return tf.reduce_sum(ones * tape.gradient(value, weight))

    with amp.mixed_precision_scope(dtype="float16", emulate=True):
        concrete = step.get_concrete_function(X)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    marked = [n for n in module.main.nodes.values() if n.flag(ir.UNSCALE)]
    assert any(not node.inputs for node in marked)
    wanted = gradients_only.gradients(module)
    assert wanted.markers
    assert all(module.main.nodes[name].inputs for name in wanted.markers)
