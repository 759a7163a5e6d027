"""`wanted_gradients`: what gradients of a step are computed from, or why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import settled
from step_copies import Linear, X, module_of
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import wanted_gradients
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.rewrite import prepare
from amp.integration.runtime import definitions
from amp.integration.training import markers


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
        assert wanted_gradients.gradients(module).reads
        return
    with pytest.raises(NotRepeatable, match=r"node \S+ \(While\) cannot run twice"):
        wanted_gradients.gradients(module)


def test_a_gradient_from_python_is_recorded_with_one_loss_scale_and_so_not_at_all():
    def squared(y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.py_function(tf.square, [y], tf.float32))

    linear = Linear(squared)
    with amp.mixed_precision_scope(dtype="float16", emulate=True, loss_scale="dynamic"):
        concrete = linear.step.get_concrete_function(X)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    module = prepare(module, settled(emulate=True)).in_float32("__python")
    with pytest.raises(NotRepeatable, match=r"node \S*EagerPyFunc cannot run twice"):
        wanted_gradients.gradients(module)
    assert wanted_gradients.gradients(module_of(linear.step, X)).taken  # no scale


def test_a_function_without_gradients_says_so() -> None:
    module = module_of(tf.function(lambda x: x @ tf.ones([3, 3])), X)
    with pytest.raises(NotRepeatable, match="it has no gradients of variables"):
        wanted_gradients.gradients(module)


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
    wanted = wanted_gradients.gradients(module)
    assert wanted.reads
    assert all(module.main.nodes[read.node].inputs for read in wanted.reads)


class Stepping:
    """Takes its step where a form says: it is called with a function that takes it."""

    def __init__(self, form: Callable[[Callable[[], tf.Tensor]], object]) -> None:
        self.weight = tf.Variable([[1.0], [2.0], [3.0]], name="weight")
        self.count = tf.Variable(0, name="count")

        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf.tanh(X @ self.weight))
            self.weight.assign_sub(tape.gradient(value, self.weight))
            self.count.assign_add(1)
            return value

        self.run = tf.function(lambda: form(step))


def looped(step: Callable[[], tf.Tensor]) -> object:
    return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, step()), [0, 0.0])


def chosen(step: Callable[[], tf.Tensor]) -> object:
    return tf.cond(tf.random.uniform([]) < 2.0, step, lambda: 0.0)


def either(step: Callable[[], tf.Tensor]) -> object:
    return tf.cond(tf.random.uniform([]) < 2.0, step, lambda: 2.0 * step())


def compiled(step: Callable[[], tf.Tensor]) -> object:
    return tf.function(step, jit_compile=True)()


def compiled_in_a_loop(step: Callable[[], tf.Tensor]) -> object:
    return looped(tf.function(step, jit_compile=True))


@pytest.mark.parametrize(
    ("form", "within", "deep", "above"),
    [
        (lambda step: step(), False, 0, None),
        (looped, True, 1, 1),
        (chosen, True, 1, 1),
        (lambda step: looped(lambda: chosen(step)), True, 2, 2),
        (compiled, False, 1, None),
        (compiled_in_a_loop, True, 2, 1),
    ],
)
def test_where_a_step_is_taken(
    form: Callable[[Callable[[], tf.Tensor]], object],
    within: bool,
    deep: int,
    above: int | None,
) -> None:
    """What is kept is in the deepest graph that XLA does not compile."""
    module = module_of(Stepping(form).run)
    wanted = wanted_gradients.gradients(module)
    assert wanted_gradients.is_within(module) is within
    assert wanted_gradients.is_step(module) is (deep == 0)
    assert len(wanted.way) == deep
    assert (wanted.kept is None) is (above is None)
    assert wanted.kept is None or len(wanted.kept) == above
    (variable,) = wanted_gradients.weights(module, wanted)
    assert "count" not in module.main.args[variable].name


def test_a_loop_that_xla_compiles_has_no_steps_to_be_recorded() -> None:
    """XLA has no kernel of what is to keep the batch, and raises in the middle."""

    def looped_inside(step: Callable[[], tf.Tensor]) -> object:
        return tf.function(lambda: looped(step), jit_compile=True)()

    module = module_of(Stepping(looped_inside).run)
    with pytest.raises(NotRepeatable, match="branch that XLA compiles"):
        wanted_gradients.gradients(module)


def test_steps_in_two_calls_are_none_to_be_repeated() -> None:
    module = module_of(Stepping(either).run)
    with pytest.raises(NotRepeatable, match="computed in function .*in another call"):
        wanted_gradients.gradients(module)
    assert wanted_gradients.is_within(module)


def test_a_variable_that_a_loop_may_change_is_no_argument_of_a_copy() -> None:
    """Two variables that take turns, so that a trip's is not known before the loop."""
    first, second = (tf.Variable([[1.0], [2.0], [3.0]]) for _ in range(2))

    def body(i: tf.Tensor, one: tf.Tensor, other: tf.Tensor) -> object:
        with tf.GradientTape() as tape:
            read = tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.float32)
            tape.watch(read)
            value = tf.reduce_sum(tf.tanh(X @ read))
        with markers.attribute_scope(ir.UNSCALE):
            grad = 1.0 * tape.gradient(value, read)
        tf.raw_ops.AssignSubVariableOp(resource=one, value=grad)
        return i + 1, other, one

    @tf.function
    def steps() -> None:
        tf.while_loop(lambda i, *_: i < 4, body, [0, first.handle, second.handle])

    with pytest.raises(NotRepeatable, match="argument .* is made inside"):
        wanted_gradients.gradients(module_of(steps))
