"""`inner_steps`: what the newest trip of a loop, or a branch, was given is kept.

Copies made of that give the gradients that this trip took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from step_copies import call, module_of

from amp.graph_rewrite.normalize import copies, inner_steps, wanted_gradients

N = 4
BATCHES = [tf.random.stateless_normal([2, 3], [1, number]) for number in range(N)]
Step = Callable[[tf.Tensor], tf.Tensor]


def held(name: str, types: list[tf.DType]) -> list[tf.Tensor] | None:
    """What the variable of a name holds, None if nothing was written to it."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.variant, shape=[], shared_name=name)
    if not tf.raw_ops.VarIsInitializedOp(resource=handle):
        return None
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.variant)
    found = tf.raw_ops.OptionalGetValue(
        optional=value, output_types=types, output_shapes=[None] * len(types)
    )
    return cast(list[tf.Tensor], list(found))


def next_in_a_loop(step: Step, batches: Any) -> tf.Tensor:
    total = 0.0
    for _ in tf.range(3):
        total += step(next(batches))
    return total


def over_a_dataset(step: Step, batches: Any) -> tf.Tensor:
    total = 0.0
    for batch in batches:
        total += step(batch)
    return total


def branch(step: Step, batches: Any) -> tf.Tensor:
    batch = next(batches)
    if tf.reduce_sum(batch) > -1e9:
        total = step(batch)
    else:
        total = 0.0
    return total


def branch_in_a_loop(step: Step, batches: Any) -> tf.Tensor:
    """As Keras has it for several steps in one execution."""
    total = 0.0
    for _ in tf.range(2):
        optional = batches.get_next_as_optional()
        if optional.has_value():
            total += step(optional.get_value())
    return total


def compiled_in_a_loop(step: Step, batches: Any) -> tf.Tensor:
    return next_in_a_loop(tf.function(step, jit_compile=True), batches)


class Steps:
    """Notes the batch and the gradient of the newest step, takes none back."""

    def __init__(self, form: Callable[[Step, Any], tf.Tensor], whole: bool) -> None:
        self.weight = tf.Variable([[1.0], [2.0], [3.0]])
        self.count = tf.Variable(0)
        self.batch = tf.Variable(tf.zeros([2, 3]))
        self.gradient = tf.Variable(tf.zeros([3, 1]))
        data = tf.data.Dataset.from_tensor_slices(BATCHES)
        self.data = data if whole else iter(data)

        def step(batch: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf.tanh(batch @ self.weight))
            gradient = tape.gradient(value, self.weight)
            self.batch.assign(batch)
            self.gradient.assign(gradient)
            self.weight.assign_sub(0.0 * gradient)
            self.count.assign_add(1)
            return value

        self.run = tf.function(lambda: form(step, self.data))


@pytest.fixture(params=[(next_in_a_loop, 3), (over_a_dataset, N), (branch, 1),
                        (branch_in_a_loop, 2), (compiled_in_a_loop, 3)],
                ids=lambda one: one[0].__name__)  # fmt: skip
def taken(request: pytest.FixtureRequest) -> tuple[Steps, int]:
    form, count = request.param
    return Steps(form, whole=form is over_a_dataset), count


def test_the_newest_batch_is_kept_and_a_copy_gives_its_gradient(
    taken: tuple[Steps, int],
) -> None:
    steps, count = taken
    module = module_of(steps.run)
    captured = steps.run.get_concrete_function().captured_inputs
    wanted = wanted_gradients.gradients(module)
    name = f"{module.main.name}_kept"
    (total,) = call(copies.recorded(module, wanted, name), captured)
    assert int(steps.count) == count
    types = [tf.as_dtype(number) for _, number in wanted.taken]
    given = held(name, types)
    assert given is not None
    want = float(sum(tf.reduce_sum(tf.tanh(b @ steps.weight)) for b in BATCHES[:count]))
    np.testing.assert_allclose(float(total), want, rtol=1e-5)
    np.testing.assert_array_equal(steps.batch, BATCHES[count - 1])
    copy = copies.computing(module, wanted, f"{module.main.name}_copy")
    for _ in range(2):  # it changes nothing
        (found,) = call(copy, [*wanted.own(captured), *given])
        np.testing.assert_allclose(found, steps.gradient, rtol=1e-6)
    assert int(steps.count) == count


def test_where_no_step_is_taken_nothing_is_kept() -> None:
    def none(step: Step, batches: Any) -> tf.Tensor:
        total = 0.0
        for _ in tf.range(tf.size(BATCHES[0]) - 6):
            total += step(next(batches))
        return total

    steps = Steps(none, whole=False)
    module = module_of(steps.run)
    captured = steps.run.get_concrete_function().captured_inputs
    wanted = wanted_gradients.gradients(module)
    name = f"{module.main.name}_none"
    call(copies.recorded(module, wanted, name), captured)
    assert int(steps.count) == 0
    assert held(name, [tf.as_dtype(number) for _, number in wanted.taken]) is None


def test_what_is_handed_on_is_found_in_the_main_function(
    taken: tuple[Steps, int],
) -> None:
    """Each variable that the step reads, through every loop, branch and call."""
    steps, _ = taken
    module = module_of(steps.run)
    (way,) = inner_steps.ways(module)
    inner = inner_steps.graphs_on(module, way)[-1]
    resources = [i for i, arg in enumerate(inner.args) if arg.type == 20]
    found = [inner_steps.argument_of_main(module, way, each) for each in resources]
    assert None not in found
    assert len(set(found)) == len(found) >= 4
