"""The dry run: float32 alone tells what float16 could not hold, gradients too."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.errors import UsageError

WEIGHTS = tf.Variable(tf.ones([8, 8]))


def looked(fn, *args, **fields):
    return amp.compare(fn, *args, policy=amp.Policy(**fields), dry_run=True)


def figures(report, name):
    return next(t.figures for t in report.tensors if t.name == name)


def test_constants_and_tensors_that_leave_the_range_are_listed_with_their_lines():
    def fn(x):
        y = tf.matmul(x, WEIGHTS, name="product")
        return tf.math.rsqrt(y * y + 1e-8) - 1e9

    report = looked(fn, tf.fill([4, 8], 1e5))
    found = {tensor.op: tensor for tensor in report.leaving}
    assert {"argument", "MatMul", "Const"} <= found.keys()
    assert figures(report, "product").largest == 8e5
    assert any("1e-8" in t.line and t.figures.underflowed for t in report.leaving)
    assert report.limit == 65504.0
    assert report.largest_scale is None
    assert not report.within()


def test_no_nodes_are_suggested_where_nothing_runs_in_16_bits():
    with pytest.raises(UsageError, match=r"dry_run=True .* suggest=0\.01"):
        amp.compare(tf.matmul, WEIGHTS, WEIGHTS, suggest=0.01, dry_run=True)


def test_bfloat16_holds_what_float32_holds():
    report = looked(
        lambda x: tf.matmul(x, WEIGHTS), tf.fill([4, 8], 1e5), dtype="bfloat16"
    )
    assert not report.leaving
    assert report.within()


def gradient(factor):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(tf.matmul(x, WEIGHTS))
        return tape.gradient(loss, [WEIGHTS])

    return step


def test_the_largest_scale_is_a_power_of_two_at_which_no_gradient_overflows():
    report = looked(gradient(3e5), tf.ones([1, 8]))
    # The gradient of the product is 3e5, all others are that or less.
    assert report.largest_scale == 2.0 ** np.floor(np.log2(65504 / 3e5))
    assert report.loss_scale == report.largest_scale
    assert not [t for t in report.leaving if t.gradient and t.figures.overflowed]


def test_a_scale_that_is_given_is_used():
    report = looked(gradient(1.0), tf.ones([1, 8]), loss_scale=2.0**17)
    assert report.loss_scale == 2.0**17
    over = [t for t in report.leaving if t.gradient and t.figures.overflowed]
    assert over
    assert report.largest_scale == 2.0**15


def test_no_state_is_changed():
    count = tf.Variable(0.0)

    @tf.function
    def fn(x):
        return x + count.assign_add(1.0)

    looked(fn, tf.ones([2]))
    assert count.numpy() == 0.0


def test_a_train_step_lists_what_it_computes_and_no_metric():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Dense(4, name="enc")])
    model.compile("sgd", keras.losses.MeanSquaredError("sum"), metrics=["mae"])
    x, y = tf.fill([8, 8], 1e5), tf.ones([8, 4])
    model.train_on_batch(x, y)

    @tf.function
    def step(x, y):
        return model.train_step((x, y))

    report = looked(step, x, y)
    names = [tensor.name for tensor in report.leaving]
    assert names[0] == "x"
    assert any("enc" in name and "MatMul" in name for name in names)
    beside = [tensor for tensor in report.tensors if tensor.beside]
    assert any("div_no_nan" in tensor.name for tensor in beside)
    assert not {tensor.name for tensor in beside} & {*names}
    assert not any("/enc" in tensor.name for tensor in beside)
    kinds = [tensor.gradient for tensor in report.leaving]
    assert kinds == sorted(kinds)
    assert any(kinds)
