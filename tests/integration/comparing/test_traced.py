"""A call is caught with its tensors, and variables are put back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.comparing import traced
from amp.integration.comparing.traced import State
from amp.integration.measuring import hardware

POLICY = amp.Policy(dtype="bfloat16", emulate=True)


def test_the_tensors_are_those_of_the_call_captured_ones_last_and_nothing_runs():
    calls = tf.Variable(0)
    weights = tf.Variable(tf.ones([2, 2]))

    @tf.function
    def fn(x, *, scale):
        calls.assign_add(1)
        return tf.matmul(x, weights) * scale

    concrete = fn.get_concrete_function(tf.zeros([2, 2]), scale=tf.constant(2.0))
    given = np.full([2, 2], 3.0, np.float32)
    named = {"scale": tf.constant(4.0)}
    found = traced.traced(concrete, (given,), named, POLICY)
    values = [t.numpy().max() for t in found.inputs if t.dtype == tf.float32]
    assert values == [3.0, 4.0]
    assert calls.numpy() == 0
    handles = {id(variable.handle) for variable in (calls, weights)}
    assert handles == {id(t) for t in found.inputs if t.dtype == tf.resource}


def test_variables_are_restored_and_values_held():
    weights, other = tf.Variable([1.0, 2.0]), tf.Variable(7)
    state = State([tf.constant(1.0), weights.handle, other.handle])
    assert state.places == {1, 2}
    weights.assign([5.0, 6.0])
    other.assign(8)
    state.restore()
    assert weights.numpy().tolist() == [1.0, 2.0]
    assert other.numpy() == 7
    assert state.hold(weights, [3.0, 3.0])
    state.restore()
    assert weights.numpy().tolist() == [3.0, 3.0]
    assert not state.hold(tf.Variable(1.0), 2.0)
    state.release()
    assert weights.numpy().tolist() == [1.0, 2.0]


def test_an_iterator_is_no_variable():
    batches = iter(tf.data.Dataset.range(3))

    @tf.function
    def fn():
        return next(batches)

    inputs = [t for t, _ in fn.get_concrete_function().graph.captures]
    assert State(inputs).places == frozenset()


@pytest.mark.parametrize("dtype", ["auto", "float16", "bfloat16"])
def test_what_the_device_cannot_compute_is_emulated_and_that_is_said(dtype):
    native = hardware.device().native
    policy, notes = traced.computable(amp.Policy(dtype=dtype))
    can = bool(native) if dtype == "auto" else dtype in native
    assert policy.emulate is not can
    assert bool(notes) is not can
    assert policy.dtype == (dtype if can or dtype != "auto" else "float16")
