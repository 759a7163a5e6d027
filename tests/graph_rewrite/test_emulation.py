"""Emulated float16 is native float16, training step by training step.

Both run the same plan from the same weights. Either rounds where the other does, so
what they give may differ only because float32 sums are taken in another order: now and
then one of the two is rounded to the neighbouring float16 number.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp

SIZES = (20, 24, 24, 10)
BATCH, STEPS, SCALE = 32, 20, 2.0**10
HALF_ULP = 2.0**-11  # of float16, relative
TINY = 2.0**-24  # its smallest number
SUM = 2.0**-23 * max(BATCH, *SIZES)  # of two float32 sums, relative to sum |x||w|


class Network:
    """ReLU layers without biases, softmax and cross entropy."""

    def __init__(self, firsts: list[np.ndarray]) -> None:
        self.weights = [tf.Variable(first) for first in firsts]

    @tf.function(autograph=False)
    def native(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return self.gradients(x, y)

    @tf.function(autograph=False)
    def emulated(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return self.gradients(x, y)

    def gradients(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            for weight in self.weights[:-1]:
                x = tf.nn.relu(tf.matmul(x, weight))
            logits = tf.matmul(x, self.weights[-1])
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(loss)
        return [logits, *tape.gradient(loss, self.weights)]


def policy(*, emulate: bool) -> amp.Policy:
    return amp.Policy(
        dtype="float16",
        emulate=emulate,
        loss_scale=amp.loss_scaling.ConstantLossScale(SCALE),
        assignment="all",
        min_gain=0.0,
        trial=False,
        strict=True,
    )


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64)


class Bounded:
    """A value in float16, and by how much two ways to compute it may differ."""

    def __init__(self, value: np.ndarray, apart: np.ndarray | float = 0.0) -> None:
        self.value, self.apart = value, np.broadcast_to(apart, value.shape)

    def __matmul__(self, other: Bounded) -> Bounded:
        """Sums of either, then one rounding of each."""
        size = np.abs(self.value), np.abs(other.value)
        sums = (size[0] + self.apart) @ (size[1] + other.apart)
        before = sums - size[0] @ size[1] + SUM * sums
        value = self.value @ other.value
        ends = 2 * HALF_ULP * (np.abs(value) + before) + TINY
        return Bounded(rounded(value), before + ends)

    @property
    def T(self) -> Bounded:
        return Bounded(self.value.T, self.apart.T)

    def through_relu_of(self, y: Bounded) -> Bounded:
        """The gradient before a ReLU whose sign may not be sure."""
        unsure = np.abs(y.value) <= y.apart
        apart = np.where(unsure, np.abs(self.value) + self.apart, self.apart)
        return Bounded(
            np.where(y.value > 0, self.value, 0.0), apart * (y.value > -y.apart)
        )


def bounds(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[Bounded]:
    """Logits and gradients, and how far apart two float16 computations may be.

    The scaled gradient of the logits is float32 and rounded once. Softmax moves by at
    most half of what a logit does, and so does its float32 gradient.
    """
    low = [Bounded(rounded(w)) for w in weights]
    made, kept = [Bounded(rounded(x))], []
    for weight in low[:-1]:
        before = made[-1] @ weight
        kept.append(before)
        made.append(Bounded(np.maximum(before.value, 0.0), before.apart))
    logits = made[-1] @ low[-1]
    share = np.exp(logits.value - logits.value.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    share[np.arange(BATCH), y] -= 1.0
    moved = logits.apart.max(-1, keepdims=True) / 2 + 2.0**-20  # float32's own exp
    seed = SCALE / BATCH
    apart = seed * (moved + 2 * HALF_ULP * (np.abs(share) + moved)) + TINY
    back, found = Bounded(rounded(seed * share), apart), []
    for index in reversed(range(len(low))):
        found.append(made[index].T @ back)
        if index:
            back = (back @ low[index].T).through_relu_of(kept[index - 1])
    return [logits, *(Bounded(g.value / SCALE, g.apart / SCALE) for g in found[::-1])]


def test_emulated_steps_are_native_steps_but_for_the_order_of_sums() -> None:
    """Within a bound for every number, and nearly always to the bit.

    Two float32 sums of n terms fall on two sides of the middle between float16 numbers
    with a probability of n 2^-23 / 2^-11, n up to 32, times sum |x||w| / |x w|, which
    is under 10 for most: 1/13 a layer. Rounding that is left out, or done elsewhere,
    moves nearly all.
    """
    random = np.random.default_rng(0)
    shapes = zip(SIZES, SIZES[1:], strict=False)
    firsts = [random.normal(0, (2 / n) ** 0.5, (n, m)).astype("f") for n, m in shapes]
    network = Network(firsts)
    same = []
    for _ in range(STEPS):
        x = random.standard_normal((BATCH, SIZES[0])).astype("f")
        y = random.integers(0, SIZES[-1], BATCH)
        weights = [w.numpy().astype(np.float64) for w in network.weights]
        with amp.mixed_precision_scope(policy(emulate=False)):
            native = [t.numpy() for t in network.native(x, y)]
        with amp.mixed_precision_scope(policy(emulate=True)):
            emulated = [t.numpy() for t in network.emulated(x, y)]
        for one, two, bound in zip(
            native, emulated, bounds(weights, x, y), strict=True
        ):
            assert (np.abs(one - bound.value) <= bound.apart).all()
            assert (np.abs(two - bound.value) <= bound.apart).all()
            assert (np.abs(one - two) <= bound.apart).all()
            same.append((one == two).mean())
        for weight, gradient in zip(network.weights, native[1:], strict=True):
            weight.assign_sub(0.1 * gradient)
    assert np.mean(same) > 0.5
    reports = amp.reports()[-2:]
    assert [report.emulated for report in reports] == [False, True]
    plans = [{d.node: d.dtype for d in report.decisions} for report in reports]
    assert plans[0] == plans[1]
    assert "float16" in plans[0].values()


WORK = {
    "relu": tf.nn.relu,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "erf": lambda x: -tf.math.erf(-x),
}


@pytest.mark.parametrize("work", sorted(WORK))
@pytest.mark.parametrize("sizes", [(8, 16, 4), (64, 16, 16), (64, 64, 64)])
def test_a_second_rewrite_of_a_function_emulated_under_xla_would_change_nothing(
    work, sizes
):
    # Between the two casts of an emulated value stands a barrier.
    rows, columns, units = sizes
    inner = tf.TensorSpec([columns, units]), tf.TensorSpec([units, columns])

    @tf.function(jit_compile=True)
    def layers(x, first, second):
        return tf.reduce_mean(tf.abs(WORK[work](x @ first) @ second))

    # Where starting a kernel costs nothing, as in emulation, small work is converted.
    weighed = amp.Policy(dtype="float16", emulate=True, min_gain=0.0, strict=True)
    report = amp.explain(
        layers, tf.TensorSpec([rows, columns]), *inner, policy=weighed
    )  # raises VerifyError if it would
    assert report.nodes_low


def test_what_xla_has_to_know_is_computed_beside_emulated_values():
    """TensorFlow computes the pads before XLA compiles, and all else that is known."""
    weights = tf.random.stateless_normal([16, 16], [1, 2])

    @tf.function(jit_compile=True)
    def step(x, weights):
        mask = (1.0 + tf.cast(tf.range(16), tf.float32)) * 0.01
        pads = tf.scatter_nd([[0, 1]], [6], [2, 2])
        return tf.pad((x @ weights) * mask, pads) @ weights

    policy = amp.Policy(
        dtype="bfloat16", emulate=True, assignment="all", strict=True, trial=False
    )
    x = tf.random.stateless_normal([8, 16], [3, 4])
    expected, sizes = step(x, weights), step(tf.abs(x), tf.abs(weights))
    with amp.mixed_precision_scope(policy):
        found = step(x, weights)
    # Each of 7 tensors on the way is rounded by 2^-8 of itself at most, which makes
    # (1 + 2^-8)^7 - 1; float32's own sums fit into the next 2^-8.
    assert np.all(np.abs(found - expected) <= 8 * 2.0**-8 * sizes)
    assert amp.reports()[-1].nodes_low
