"""`calls`: which functions a graph reaches, and how often they run."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, spec, traced, v1

import amp
from amp.graph_rewrite.graph import calls, ir, shapes
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.integration import api


def test_uses_are_counted_by_how_often_they_run() -> None:
    inner = tf.function(lambda x: x * 2.0)

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda y: tf.reduce_sum(y) < 9.0, lambda y: [inner(y)], [x]
        )

    module, _ = traced(fn, spec(4))
    weights = calls.uses_with_weights(module)
    assert weights[FunctionUse(module.main.name, xla=False)] == 1.0
    assert sorted(weights.values())[-3:] == [shapes.UNKNOWN_TRIPS] * 3


def test_each_branch_counts_by_how_often_it_runs() -> None:
    def fn(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        y = tf.cond(n > 0, lambda: tf.matmul(x, x), lambda: x)
        return tf.switch_case(n, [lambda: y, lambda: y + x, lambda: y * x])

    module, _ = traced(fn, spec(4, 4), spec(dtype=tf.int32))
    weights = calls.uses_with_weights(module)
    assert sorted(weights.values()) == [1 / 3] * 3 + [1 / 2] * 2 + [1.0]


def test_a_function_compiled_here_and_not_there_has_two_uses() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x, name="inner"))
    compiled = tf.function(lambda x: inner(x), jit_compile=True)

    def build() -> None:
        x = v1.placeholder(tf.float32, [4, 4], name="x")
        tf.add(inner(x), compiled(x), name="sum")

    module = module_of(graph_def(build))
    uses = [use for use in calls.uses_with_weights(module) if use.name]
    assert {use.xla for use in uses} == {True, False}


def test_a_call_under_keep_float32_runs_the_original_and_the_others_the_twin() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x, name="inner"))

    def fn(x: tf.Tensor) -> tf.Tensor:
        with api.keep_float32():
            kept = inner(x)
        return kept, inner(x)

    x = tf.constant(np.full((4, 4), 1 / 3, np.float32))
    twin = amp.twin(
        tf.function(fn), x, policy=amp.Policy(dtype="bfloat16", assignment="all")
    )
    kept, low = twin(x)
    np.testing.assert_array_equal(kept, tf.matmul(x, x))
    assert np.abs(low - tf.matmul(x, x)).max() > 0


@pytest.mark.parametrize("emulate", [False, True])
def test_what_loops_and_branches_hand_on_is_16_bit_and_results_are_float32(
    emulate: bool,
) -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        _, y = tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, tf.tanh(tf.matmul(y, x))),
            [tf.constant(0), x],
        )
        return tf.cond(flag, lambda: tf.matmul(y, y), lambda: y)

    policy = amp.Policy(
        dtype="bfloat16", assignment="all", emulate=emulate, strict=True
    )
    x = tf.constant(np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4))
    for flag in (tf.constant(True), tf.constant(False)):
        twin = amp.twin(fn, x, flag, policy=policy)
        got, want = twin(x, flag), fn(x, flag)
        assert got.dtype == tf.float32
        # Four products of entries under 1 in rows of absolute sum under 2: each adds
        # three roundings of 2**-8, and the next may double what came before.
        assert np.abs(got - want).max() <= 3 * 2.0**-8 * (1 + 2 + 4 + 8)
    types = {
        name.rpartition("__amp")[0]: [arg.type for arg in function.signature.input_arg]
        for function in twin.graph.as_graph_def().library.function
        if "__amp" in (name := function.signature.name)
    }
    bodies = [found for name, found in types.items() if "while_body" in name]
    # The invariant x and the product's result are held in 16 bits from trip to trip.
    assert [kinds.count(ir.BFLOAT16) for kinds in bodies] == [0 if emulate else 2]


def test_a_function_is_called_on_the_devices_of_its_calls_and_of_its_callers() -> None:
    here, there = "/device:CPU:0", "/device:GPU:0"

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x + 1.0

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        with tf.device(here):  # XLA does not look at it
            return inner(x)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x)

    @tf.function
    def main(x: tf.Tensor) -> tf.Tensor:
        with tf.device(there):
            x = compiled(x)
        with tf.device(here):
            x = outer.get_concrete_function(given)(x)
        return outer.get_concrete_function(given)(x)

    given = spec(2)
    inner.get_concrete_function(given)
    outer.get_concrete_function(given)
    module, _ = traced(main, given)
    found = {
        (use.name.removeprefix("__inference_").rpartition("_")[0], use.xla): devices
        for use, devices in calls.devices_called_on(module).items()
    }
    assert found == {
        ("main", False): {""},
        ("outer", False): {"", here},
        ("inner", False): {"", here},
        ("compiled", True): {there},
        ("inner", True): {there},
    }
