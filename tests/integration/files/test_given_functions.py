"""Functions given by hand: explained, and twins to hold, call and export."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import spec
from tensorflow.python.eager import context as context_lib

import amp

pytestmark = pytest.mark.kernels

ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}
POLICY = amp.Policy(**ALL)


def test_a_function_is_explained_with_arguments_specs_or_traced_already() -> None:
    fn = tf.function(lambda x: tf.tanh(x @ x))
    x = tf.ones([4, 4])
    for report in (
        amp.explain(fn, x, policy=POLICY),
        amp.explain(fn, spec(4, 4), policy=POLICY),
        amp.explain(fn.get_concrete_function(x), policy=POLICY),
        amp.explain(lambda x: tf.tanh(x @ x), x, policy=POLICY),
    ):
        assert report.nodes_low == 3  # with the Identity of the result


def test_a_twin_has_the_signature_and_variables_of_its_original() -> None:
    weights = tf.Variable(tf.eye(4) * 2)
    fn = tf.function(lambda x: {"y": tf.matmul(x, weights)})
    x = tf.ones([4, 4]) / 3
    original = fn.get_concrete_function(x)
    twin = amp.twin(fn, x, policy=POLICY)
    assert twin.structured_outputs == original.structured_outputs
    assert 14 in {n.attr["T"].type for n in twin.graph.as_graph_def().node}
    np.testing.assert_allclose(twin(x)["y"], fn(x)["y"], rtol=2.0**-8)
    weights.assign(tf.eye(4) * 4)
    np.testing.assert_allclose(twin(x)["y"], fn(x)["y"], rtol=2.0**-8)


def test_where_nothing_converts_the_twin_is_the_original() -> None:
    original = tf.function(lambda x: tf.exp(x)).get_concrete_function(spec(4))
    assert amp.twin(original, policy=POLICY) is original


def branching(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.matmul(x, x), lambda: 2.0 * tf.matmul(x, x)
    )


def registered() -> set[str]:
    gc.collect()
    return set(context_lib.context().list_function_names())


def test_a_twin_that_is_gone_leaves_no_function_behind() -> None:
    fn, x = tf.function(branching), tf.eye(4)

    def used() -> set[str]:
        twin = amp.twin(fn, x, policy=POLICY)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = twin(x)
        tape.gradient(y, x)
        return registered()

    used()
    before = registered()
    assert all(used() - before for _ in range(3))
    assert registered() <= before


def test_what_was_traced_with_a_call_of_a_twin_outlives_the_twin() -> None:
    x = tf.eye(4)

    def traced() -> Any:
        twin = amp.twin(branching, x, policy=POLICY)
        return tf.function(lambda x: twin(x) + 1.0).get_concrete_function(x)

    concrete = traced()
    gc.collect()
    np.testing.assert_array_equal(concrete(x), np.eye(4) + 1.0)
    np.testing.assert_array_equal(concrete(-x), 2.0 * np.eye(4) + 1.0)
