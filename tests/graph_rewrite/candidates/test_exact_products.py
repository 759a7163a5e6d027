"""`exact_products`: counts and ranks are read to the last digit, other products not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import amp

Step = Callable[..., tf.Tensor]
NUMBERS = tf.range(512) % 7
FLOATS = tf.constant(np.random.default_rng(1).normal(size=(512, 64)), tf.float32)
WEIGHTS = tf.constant(np.random.default_rng(2).normal(size=(64, 96)), tf.float32)


def product(step: Step, *args: tf.Tensor) -> tuple[str, str]:
    """The type of the product named "it", and the rule."""
    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
    report = amp.explain(tf.function(step), *args, policy=policy)
    (one,) = [d for d in report.decisions if d.node == "it"]
    return one.dtype, one.rule


def confusion(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.one_hot(labels, 7), tf.one_hot(found, 7)
    return tf.matmul(one, other, transpose_a=True, name="it")


def reshaped(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.one_hot(labels, 7), tf.one_hot(found, 7)
    pairs = tf.reshape(one, [2, -1, 7]), tf.reshape(other, [2, -1, 7])
    return tf.matmul(*pairs, transpose_a=True, name="it")


def masks(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.cast(labels > 2, tf.float32), tf.cast(found, tf.float32)
    return tf.matmul(one[:, None], other[:, None], transpose_a=True, name="it")


def degrees(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    near = tf.cast(labels[:, None] == found, tf.float32)
    return tf.matmul(near, tf.ones([512, 1]), name="it")


@pytest.mark.parametrize("step", [confusion, reshaped, masks, degrees])
def test_a_product_of_whole_numbers_counts(step: Step) -> None:
    assert product(step, NUMBERS, NUMBERS) == ("float32", "count")


def embedded(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.one_hot(labels, 512), table, name="it")


def smoothed(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    targets = tf.one_hot(labels, 512, on_value=0.9, off_value=0.1)
    return tf.matmul(targets, tf.one_hot(labels, 96), name="it")


def constants(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]), name="it")


@pytest.mark.parametrize("step", [embedded, smoothed, constants])
def test_other_products_do_not(step: Step) -> None:
    assert product(step, NUMBERS, FLOATS)[0] == "bfloat16"


def ranked(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(x, WEIGHTS, name="it")
    own = tf.gather(scores, target, batch_dims=1)
    return tf.reduce_sum(tf.cast(scores > own[:, None], tf.float32), 1)


def ranked_with_a_bias(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    scores = tf.nn.bias_add(tf.matmul(x, WEIGHTS, name="it"), tf.ones([96]))
    own = tf.gather(scores, target, batch_dims=1)
    higher = tf.logical_and(scores > own[:, None], target[:, None] > 0)
    return tf.math.count_nonzero(higher, 1)


@pytest.mark.parametrize("step", [ranked, ranked_with_a_bias])
def test_a_product_whose_results_are_ranked_is_float32(step: Step) -> None:
    assert product(step, FLOATS, NUMBERS) == ("float32", "decision")


def chosen(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    one, other = tf.split(tf.matmul(x, WEIGHTS, name="it"), 2, 1)
    return tf.where(one > other, one, other)


def above(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(x, WEIGHTS, name="it")
    return tf.reduce_sum(tf.cast(scores > 0.5, tf.float32), 1)


@pytest.mark.parametrize("step", [chosen, above])
def test_one_that_is_compared_otherwise_is_not(step: Step) -> None:
    assert product(step, FLOATS, NUMBERS)[0] == "bfloat16"
