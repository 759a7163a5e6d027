"""`fixed_filters`: a blur is told from a convolution with weights that are learned."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, rewritten, rules, v1

import amp
from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.candidates.fixed_filters import weighted_means

Filter = Callable[[tf.Tensor], tf.Tensor]
SHAPE = [3, 3, 2, 1]


def gaussian(x: tf.Tensor) -> tf.Tensor:
    """As `tf.image.ssim` computes it, for as many channels as there are."""
    off = tf.square(tf.cast(tf.range(9), tf.float32) - 4.0) * -0.5
    window = tf.reshape(tf.nn.softmax(off[None]), [3, 3, 1, 1])
    return tf.tile(window, [1, 1, tf.shape(x)[-1], 1])


FIXED: dict[str, Filter] = {
    "a mean": lambda x: tf.fill(SHAPE, 1 / 9),
    "numbers": lambda x: tf.constant(np.arange(18.0), tf.float32, SHAPE),
    "a Gaussian": gaussian,
}
OTHER: dict[str, Filter] = {
    "frozen weights": lambda x: tf.constant(np.arange(18.0) - 9, tf.float32, SHAPE),
    "frozen weights that are moved": lambda x: tf.transpose(
        tf.constant(np.arange(18.0) - 9, tf.float32, SHAPE[::-1])
    ),
    "nothing": lambda x: tf.zeros(SHAPE),
    "weights": lambda x: v1.placeholder(tf.float32, SHAPE),
    "a variable": lambda x: v1.get_variable("v", SHAPE, use_resource=True) * 1.0,
    "random": lambda x: tf.random.uniform(SHAPE),
    "of the data": lambda x: tf.nn.softmax(tf.reshape(x, [-1])[:18]),
}


def convolved(made: Filter) -> Callable[[], None]:
    def build() -> None:
        x = v1.placeholder(tf.float32, [1, 8, 8, 2], name="x")
        window = tf.reshape(made(x), SHAPE)
        args = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        it = tf.nn.depthwise_conv2d(x, window, name="it", **args)
        tf.identity(tf.gradients(it * it, x)[0], name="gradient")

    return build


def means(made: Filter) -> set[str]:
    module = module_of(graph_def(convolved(made)))
    found = weighted_means(module.main, type_ports(module.main, context_of(module)))
    return {name.rpartition("/")[2] for name in found}


@pytest.mark.parametrize("name", FIXED)
def test_a_convolution_with_a_fixed_filter_and_its_gradient_are_means(
    name: str,
) -> None:
    assert means(FIXED[name]) == {"it", "DepthwiseConv2dNativeBackpropInput"}


@pytest.mark.parametrize("name", OTHER)
def test_what_may_be_weights_is_no_filter(name: str) -> None:
    assert not means(OTHER[name])


def test_a_graph_without_convolutions_has_none() -> None:
    module = module_of(graph_def(lambda: tf.matmul(tf.eye(2), tf.eye(2))))
    assert not weighted_means(module.main, type_ports(module.main, context_of(module)))


def test_similarity_of_images_is_float32_with_its_gradient() -> None:
    """Its moments are means under a Gaussian: E[x y] - E[x] E[y]."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [1, 16, 16, 2], name="x")
        weights = v1.placeholder(tf.float32, [1, 1, 2, 2])
        one = tf.nn.conv2d(x, weights, 1, "SAME", name="one")
        other = v1.placeholder(tf.float32, [1, 16, 16, 2])
        like = tf.image.ssim(one, other, 1.0)
        tf.identity(tf.gradients(like, x)[0], name="gradient")

    report = rewritten(graph_def(build), fetches=["gradient"]).report
    for op in ("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput"):
        assert {d.rule for d in report.decisions if d.op == op} == {"cancels"}
    assert rules(report)["one"] == "compute"
    products = [d for d in report.decisions if d.op == "Mul" and "gradients/" in d.node]
    assert {d.dtype for d in products} == {"float32"}


def test_a_blur_of_which_nothing_is_taken_is_16_bit() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [1, 8, 8, 2], name="x")
        args = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        blurred = tf.nn.depthwise_conv2d(x, gaussian(x), name="it", **args)
        tf.nn.conv2d(blurred, v1.placeholder(tf.float32, [1, 1, 2, 2]), 1, "SAME")

    assert rules(rewritten(graph_def(build)).report)["it"] == "compute"


WINDOW = tf.constant(np.full(SHAPE, 1 / 9), tf.float32)
TRAINED = tf.constant(np.full([1, 1, 2, 2], 1.0), tf.float32)


def local_variance(x: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    args = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    mean = tf.nn.depthwise_conv2d(x, window, name="mean", **args)
    square = tf.nn.depthwise_conv2d(x * x, window, name="square", **args)
    return square - mean * mean


def decided(step: Callable[..., tf.Tensor], *args: tf.Tensor) -> dict[str, str]:
    """The rules of a function's convolutions, by their names."""
    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
    report = amp.explain(tf.function(step), *args, policy=policy)
    found = {re.split("/|::", d.node)[-1]: d.rule for d in report.decisions}
    return {name: found[name] for name in ("mean", "square")}


@pytest.mark.parametrize("inner", [False, True])
def test_a_filter_that_was_made_outside_of_the_function_is_fixed(inner: bool) -> None:
    """As a window that a program makes once; also where XLA compiles its users."""
    spread = tf.function(local_variance, jit_compile=True) if inner else local_variance

    weights = tf.Variable(TRAINED)

    def loss(x: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.conv2d(x, weights, 1, "SAME")
        return tf.reduce_mean(spread(hidden, tf.reshape(WINDOW, SHAPE)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = loss(x)
        return tape.gradient(found, weights)

    for one in (loss,) if inner else (loss, step):
        found = decided(one, tf.ones([4, 16, 16, 2]))
        assert found == {"mean": "cancels", "square": "cancels"}


def test_a_tensor_by_which_a_gradient_is_taken_is_no_fixed_filter() -> None:
    """As of a program that keeps its weights in no variables."""

    def step(x: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(window)
            loss = tf.reduce_mean(local_variance(x, window) ** 2)
        return tape.gradient(loss, window)

    assert "cancels" not in decided(step, tf.ones([4, 16, 16, 2]), WINDOW).values()


def test_what_is_computed_of_the_data_is_no_fixed_filter() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        window = tf.nn.softmax(tf.reshape(x, [-1])[:18])
        return local_variance(x, tf.reshape(window, SHAPE))

    assert "cancels" not in decided(step, tf.ones([4, 16, 16, 2])).values()


def test_weights_that_a_program_passes_along_are_no_fixed_filters() -> None:
    """Nothing by them is trained here: a frozen network, a teacher, a sampler."""
    weights = [tf.ones([3, 3, 2, 8]), tf.ones([3, 3, 8, 8]), tf.ones([1, 1, 8, 8])]

    def step(x: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            x = tf.nn.conv2d(x, weight, 1, "SAME")
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            x = tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3))
        return x

    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
    x = tf.ones([4, 16, 16, 2])
    report = amp.explain(tf.function(step), x, *weights, policy=policy)
    assert {d.dtype for d in report.decisions if d.op == "Conv2D"} == {"bfloat16"}


def test_a_window_over_what_the_function_is_given_is_fixed_too() -> None:
    """As of the image that another one is compared with."""
    args = {"strides": [1, 1, 1, 1], "padding": "SAME"}

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x = tf.nn.conv2d(x, TRAINED, 1, "SAME")
        one = tf.nn.depthwise_conv2d(x, WINDOW, name="mean", **args)
        other = tf.nn.depthwise_conv2d(y, WINDOW, name="square", **args)
        both = tf.nn.depthwise_conv2d(x * y, WINDOW, **args)
        return tf.reduce_mean(both - one * other)

    found = decided(step, tf.ones([4, 16, 16, 2]), tf.ones([4, 16, 16, 2]))
    assert found == {"mean": "cancels", "square": "cancels"}
