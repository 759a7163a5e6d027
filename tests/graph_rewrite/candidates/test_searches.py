"""Where a search outside sets the point of a gradient, all is float32; nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

import amp
from amp.integration.install import install

FIELDS = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}
X = np.ones([4, 8], np.float32)


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def weights():
    """Two weights, a counter, and a buffer of what is fed."""
    values = [tf.ones([8, 8]), tf.zeros([8]), tf.zeros([]), tf.zeros([9, 8])]
    return [tf.Variable(value) for value in values]


def loss_of(weights):
    return tf.reduce_sum(tf.nn.tanh(tf.matmul(tf.constant(X), weights[0]) + weights[1]))


def gradient_of(weights):
    with tf.GradientTape() as tape:
        loss = loss_of(weights)
    return [loss, *tape.gradient(loss, weights[:2])]


def set_to(weights, flat):
    for weight, part in zip(weights[:2], tf.split(flat, [64, 8]), strict=True):
        weight.assign(tf.reshape(part, weight.shape))


def assigned(weights, flat):
    set_to(weights, flat)
    return gradient_of(weights)


def assigned_by_a_function(weights, flat):
    tf.function(set_to)(weights, flat)
    return tf.function(gradient_of)(weights)


def moved(weights, flat):
    """Along a direction that the search gives."""
    weights[1].assign_add(0.5 * flat[:8])
    return gradient_of(weights)


def partly(weights, flat):
    """Only what is searched for; the other weights are fixed."""
    weights[1].assign(tf.exp(flat[:8]))
    return gradient_of(weights)


def unset(weights, flat):
    return [flat, *gradient_of(weights)]


def set_and_trained(weights, flat):
    """As a client of federated learning is."""
    set_to(weights, flat)
    loss, *grads = gradient_of(weights)
    for weight, grad in zip(weights, grads, strict=False):
        weight.assign_sub(0.1 * grad)
    return [loss]


def set_and_trained_in_a_loop(weights, flat):
    set_to(weights, flat)
    for _ in tf.range(3):
        _, *grads = gradient_of(weights)
        for weight, grad in zip(weights, grads, strict=False):
            weight.assign_sub(0.1 * grad)
    return [tf.identity(weight) for weight in weights[:2]]


def normalized(weights, flat):
    """As Keras' SpectralNormalization sets its kernel."""
    weights[0].assign(weights[0] * flat[0] / tf.norm(weights[0]))
    return gradient_of(weights)


def restored(weights, flat):
    weights[0].assign(tf.ones([8, 8]))
    return [flat, *gradient_of(weights)]


def only_read(weights, flat):
    set_to(weights, flat)
    return [loss_of(weights)]


def counted(weights, flat):
    *_, counter, buffer = weights
    counter.assign(flat[0])
    buffer.assign(tf.reshape(flat, [9, 8]))
    loss, *grads = gradient_of(weights)
    return [loss * counter + tf.reduce_sum(buffer), *grads]


def of_an_equation(weights, flat):
    """A loss that is made of a gradient, as of physics-informed networks."""
    set_to(weights, flat)
    with tf.GradientTape() as tape:
        y = loss_of(weights)
        first, second = tf.gradients(y, weights[:2])
        loss = y + tf.reduce_sum(first**2) + tf.reduce_sum(second**2)
    return [loss, *tape.gradient(loss, weights[:2])]


def of_an_equation_and_trained(weights, flat):
    loss, *grads = of_an_equation(weights, flat)
    for weight, grad in zip(weights, grads, strict=False):
        weight.assign_sub(0.1 * grad)
    return [loss]


def rules_of(fn, weights, xla):
    """The rules that decided when a function was called for the first time."""
    before = len(amp.reports())

    @tf.function(jit_compile=xla or None)
    def called(flat):
        return fn(weights, flat)

    with amp.mixed_precision_scope(**FIELDS):
        called(tf.ones([72]))
    (report,) = [r for r in amp.reports()[before:] if "called" in r.function]
    return {each.rule for each in report.decisions}


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (assigned, True),
        (assigned_by_a_function, True),
        (moved, True),
        (partly, True),
        (of_an_equation, True),
        (of_an_equation_and_trained, False),
        (unset, False),
        (set_and_trained, False),
        (set_and_trained_in_a_loop, False),
        (normalized, False),
        (restored, False),
        (only_read, False),
        (counted, False),
    ],
)
def test_a_search_is_known_by_the_weights_that_it_gives(fn, found, xla, weights):
    assert ("searched" in rules_of(fn, weights, xla)) == found


def search(dtype):
    """SciPy's search for the weights of a regression, begun at 0."""
    random = np.random.RandomState(0)
    x = tf.constant(random.randn(256, 64), tf.float32)
    y = tf.matmul(x, tf.constant(10.0 * random.randn(64, 1), tf.float32))
    weights = tf.Variable(tf.zeros([64, 1]))

    @tf.function
    def evaluate(flat):
        weights.assign(tf.reshape(flat, [64, 1]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, weights) - y))
        return loss, tf.reshape(tape.gradient(loss, weights), [-1])

    def closure(flat):
        loss, gradient = evaluate(tf.constant(flat, tf.float32))
        return float(loss), gradient.numpy().astype("float64")

    begin = np.zeros(64)
    if dtype == "float32":
        return scipy.optimize.minimize(closure, begin, jac=True, method="L-BFGS-B")
    with amp.mixed_precision_scope(**{**FIELDS, "dtype": dtype}):
        return scipy.optimize.minimize(closure, begin, jac=True, method="L-BFGS-B")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_search_takes_the_steps_that_it_takes_in_float32(dtype):
    """Without the rule float16 stops at an overflow, and bfloat16 where it rounds."""
    expected, found = search("float32"), search(dtype)
    assert (found.nit, found.fun) == (expected.nit, expected.fun)
    report = [r for r in amp.reports() if "evaluate" in r.function][-1]
    assert report.nodes_low == 0
    assert "a search outside" in report.verdict
    assert "searched" in {each.rule for each in report.decisions}
