"""The search for nodes: none is idle, and the patterns do what the search did."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.comparing import suggest

POLICY = amp.Policy(dtype="float16", emulate=True, assignment="all")


@pytest.mark.parametrize("needed", [{3}, {0, 9}, {2, 5, 6}, set(range(10))])
def test_what_can_be_left_out_is_left_out(needed):
    def is_fine(kept):
        return needed <= kept

    found = suggest._without_idle(frozenset(range(10)), is_fine, lambda: False)
    assert found == needed


def test_it_ends_when_time_is_spent():
    kept = frozenset(range(10))
    assert suggest._without_idle(kept, lambda _: True, lambda: True) == kept


def test_a_pattern_matches_a_node_in_its_own_function_and_with_calls_inlined():
    given = frozenset({"own", "call", "layer/MatMul"})
    patterns = suggest.patterns_of(["own", "call/layer/MatMul"], given)
    assert patterns == ("own", "*layer/MatMul")
    policy = amp.Policy(keep=patterns)
    assert policy.keeps("call/layer/MatMul")
    assert policy.keeps("layer/MatMul")


def large(x, weights):
    """The rows in the middle leave the range of float16 and come back."""
    for number in range(2):
        x = tf.matmul(x, weights, name=f"small_{number}")
    x = tf.matmul(x, tf.matmul(weights, weights, name="scale") * 3e4, name="large")
    return tf.matmul(tf.nn.relu(x) * 1e-4, weights, name="last")


def test_the_suggestion_works_as_a_policy_and_no_node_of_it_is_idle():
    random = np.random.default_rng(0)
    x, weights = (
        tf.constant(random.normal(0.0, 0.5, (32, 32)), tf.float32) for _ in range(2)
    )
    assert not np.isfinite(amp.compare(large, x, weights, policy=POLICY).error)
    found = amp.compare(large, x, weights, policy=POLICY, suggest=0.01).suggestion
    assert found.reached
    assert found.complete
    assert found.left > 0
    kept = dataclasses.replace(POLICY, keep=found.keep)
    assert amp.compare(large, x, weights, policy=kept).error == found.error
    for pattern in found.keep:
        less = dataclasses.replace(POLICY, keep=set(found.keep) - {pattern})
        assert amp.compare(large, x, weights, policy=less).error > 0.01


def test_where_the_bound_holds_already_nothing_is_suggested():
    x = tf.ones([8, 8])
    found = amp.compare(lambda x: tf.matmul(x, x), x, policy=POLICY, suggest=0.1)
    assert found.suggestion.keep == ()
    assert found.suggestion.reached


def test_a_bound_that_only_float32_meets_keeps_everything():
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 8)), tf.float32)
    found = amp.compare(lambda x: tf.matmul(x, x), x, policy=POLICY, suggest=1e-9)
    assert found.suggestion.left == 0
    assert found.suggestion.reached
