"""`exact_products`: counts and ranks are read to the last digit, other products not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.graph_rewrite.candidates import exact_products

POLICY = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
Step = Callable[..., tf.Tensor]
NUMBERS = tf.range(512) % 7
FLOATS = tf.constant(np.random.default_rng(1).normal(size=(512, 64)), tf.float32)
WEIGHTS = tf.constant(np.random.default_rng(2).normal(size=(64, 96)), tf.float32)


def product(step: Step, *args: tf.Tensor) -> tuple[str, str]:
    """The type of the product named "it", and the rule."""
    report = amp.explain(tf.function(step), *args, policy=POLICY)
    (one,) = [d for d in report.decisions if d.node == "it"]
    return one.dtype, one.rule


def confusion(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.one_hot(labels, 7), tf.one_hot(found, 7)
    return tf.matmul(one, other, transpose_a=True, name="it")


def reshaped(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.one_hot(labels, 7), tf.one_hot(found, 7)
    pairs = tf.reshape(one, [1, -1, 7]), tf.reshape(other, [1, -1, 7])
    return tf.matmul(*pairs, transpose_a=True, name="it")


def masks(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = tf.cast(labels > 2, tf.float32), tf.cast(found, tf.float32)
    return tf.matmul(one[:, None], other[:, None], transpose_a=True, name="it")


def degrees(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    near = tf.cast(labels[:, None] == found, tf.float32)
    return tf.matmul(near, tf.ones([512, 1]), name="it")


def others(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one, other = 1.0 - tf.one_hot(labels, 7), tf.one_hot(found, 7)
    return tf.matmul(one, other, transpose_a=True, name="it")


def masked(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    mask = tf.cast(labels > 2, tf.float32)[:, None]
    one, other = tf.one_hot(labels, 7) * mask, tf.one_hot(found, 7)
    return tf.matmul(one, other, transpose_a=True, name="it")


def rounded(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    one = tf.round(tf.sigmoid(FLOATS[:, :7]))
    return tf.matmul(one, tf.one_hot(found, 7), transpose_a=True, name="it")


def hamming(labels: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
    signs = tf.sign(FLOATS)
    return tf.matmul(signs, signs[::2], transpose_a=False, transpose_b=True, name="it")


WHOLE = [confusion, reshaped, masks, degrees, others, masked, rounded]


@pytest.mark.parametrize("step", WHOLE)
def test_a_product_of_whole_numbers_counts(step: Step) -> None:
    assert product(step, NUMBERS, NUMBERS) == ("float32", "count")


def embedded(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.one_hot(labels, 512), table, name="it")


def smoothed(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    targets = tf.one_hot(labels, 512, on_value=0.9, off_value=0.1)
    return tf.matmul(targets, tf.one_hot(labels, 96), name="it")


def constants(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]), name="it")


def few(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """No count is larger than 128."""
    one, other = tf.one_hot(labels[:128], 96), tf.one_hot(labels[128:256], 96)
    return tf.matmul(one, other, transpose_a=True, name="it")


@pytest.mark.parametrize("step", [embedded, smoothed, constants, few, hamming])
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


def ranked_by_a_mask(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(x, WEIGHTS, name="it")
    own = tf.gather(scores, target, batch_dims=1)
    higher = tf.cast(scores > own[:, None], tf.float32)
    return tf.reduce_sum(higher * tf.abs(WEIGHTS[0, :1]), 1)


def close(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    return tf.math.count_nonzero(tf.matmul(x, WEIGHTS, name="it") > 0.999)


def parity(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    return tf.math.floormod(tf.matmul(x, WEIGHTS, name="it"), 2.0)


def coded(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    return tf.round(tf.matmul(x, WEIGHTS, name="it") + 0.5)


def read_twice(x: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    key = tf.matmul(x, WEIGHTS, name="it")
    return tf.cast(key, tf.int32), tf.reduce_mean(key)


EXACT = [ranked, ranked_with_a_bias, ranked_by_a_mask, close, parity, coded, read_twice]


@pytest.mark.parametrize("step", EXACT)
def test_a_product_whose_results_are_ranked_is_float32(step: Step) -> None:
    assert product(step, FLOATS, NUMBERS) == ("float32", "decision")


def squared_form(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """The variance of a portfolio, say."""
    return tf.reduce_sum(tf.matmul(x, WEIGHTS[:, :64], name="it") * x, 1)


def test_the_terms_of_a_quadratic_form_may_cancel() -> None:
    assert product(squared_form, FLOATS, NUMBERS) == ("float32", "cancels")


def gated(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    other = tf.tanh(x)
    return tf.reduce_sum(tf.matmul(x, WEIGHTS[:, :64], name="it") * other, 1)


def chosen(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    one, other = tf.split(tf.matmul(x, WEIGHTS, name="it"), 2, 1)
    return tf.where(one > other, one, other)


def above(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(x, WEIGHTS, name="it")
    return tf.reduce_sum(tf.cast(scores > 0.0, tf.float32), 1)


def residual(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """The sum of several products, of which one is far from the comparison."""
    hidden = tf.matmul(x, WEIGHTS, name="it")
    for _ in range(3):
        hidden += tf.matmul(tf.nn.relu(hidden), tf.ones([96, 96]))
    higher = tf.cast(hidden[:, :1] > hidden[:, 1:], tf.float32)
    return tf.reduce_sum(higher, 1)


@pytest.mark.parametrize("step", [chosen, above, residual, gated])
def test_one_that_is_compared_otherwise_is_not(step: Step) -> None:
    assert product(step, FLOATS, NUMBERS)[0] == "bfloat16"


@pytest.mark.parametrize("length", [200, 800])
def test_each_node_is_looked_at_once(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each trip compares what all trips before have computed."""
    looked: list[str] = []
    honest = exact_products._floats
    monkeypatch.setattr(
        exact_products, "_floats", lambda v: looked.append(v.node.name) or honest(v)
    )

    def step(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        one = other = tf.matmul(x, WEIGHTS)
        for _ in range(length):
            one, other = one + 1.0, other + tf.cast(one > other, tf.float32)
        return one + other

    amp.explain(tf.function(step), FLOATS, NUMBERS, policy=POLICY)
    assert len(looked) <= 11 * length
