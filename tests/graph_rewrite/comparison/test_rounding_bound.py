"""The error that rounding explains: its rules, and that sound twins stay below it."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf
from pairs import pair_of

from amp.graph_rewrite.comparison import rounding_bound

v1 = tf.compat.v1
UNIT = 2.0**-8


def bounds(build):
    return rounding_bound.bounds(pair_of(build), UNIT)


def placeholder(name):
    return v1.placeholder(tf.float32, [8, 8], name=name)


def test_errors_of_factors_add_up_and_those_of_summands_do_not():
    def build():
        a, b = placeholder("a"), placeholder("b")
        product = tf.matmul(a, b, name="product")
        total = tf.add(product, tf.matmul(b, a, name="other"), name="total")
        tf.matmul(total, product, name="y")

    found = bounds(build)
    assert found["product"] == 3 * UNIT  # of each operand, and its own
    assert found["total"] == 4 * UNIT
    assert found["y"] == 8 * UNIT


def test_a_choice_by_a_rounded_value_may_turn_some_elements():
    def build():
        a, b = placeholder("a"), placeholder("b")
        product = tf.matmul(a, b, name="product")
        tf.raw_ops.ReluGrad(gradients=product, features=product, name="chosen")
        tf.matmul(v1.get_default_graph().get_tensor_by_name("chosen:0"), b, name="y")

    found = bounds(build)
    error = 3 * UNIT + math.sqrt(2 * 3 * UNIT) + UNIT
    assert found["chosen"] == pytest.approx(error)


def test_a_loop_rounds_on_every_trip():
    def build():
        a, b = placeholder("a"), placeholder("b")
        _, result = tf.while_loop(
            lambda i, x: i < 5, lambda i, x: (i + 1, tf.matmul(x, b)), (0, a)
        )
        tf.identity(result, name="y")

    v1.enable_control_flow_v2()
    found = bounds(build)
    loop = next(error for name, error in found.items() if name == "while")
    assert loop >= 5 * UNIT


def test_there_is_no_bound_above_one_half():
    def build():
        x = placeholder("a")
        for _ in range(10):
            x = tf.matmul(x, x)
        tf.identity(x, name="y")

    assert max(bounds(build).values()) == rounding_bound.MOST
