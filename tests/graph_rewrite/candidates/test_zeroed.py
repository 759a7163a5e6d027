"""A step that would keep what the zeros of an overflow become is all float32."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install

keras = pytest.importorskip("keras")
v1 = tf.compat.v1
FIELDS = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def weights():
    return [tf.Variable(tf.ones([8, 8])), tf.Variable(tf.zeros([8]))]


def gradient_of(weights, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(x, weights[0]) + weights[1]))
    return tape.gradient(loss, weights)


def add(weights, steps):
    for weight, step in zip(weights, steps, strict=True):
        weight.assign_sub(0.1 * step)


def by_norm(weights, grads):
    add(weights, [g / tf.norm(g) for g in grads])


def by_global_norm(weights, grads):
    norm = tf.linalg.global_norm(grads)
    add(weights, [g * (0.05 / norm) for g in grads])


def by_largest(weights, grads):
    add(weights, [g / tf.reduce_max(tf.abs(g)) for g in grads])


def by_reciprocal_root(weights, grads):
    add(weights, [g * tf.math.rsqrt(tf.reduce_sum(g * g)) for g in grads])


def sharpness_aware(weights, grads):
    """To where the loss is largest, and back."""
    steps = [0.05 * g / tf.linalg.global_norm(grads) for g in grads]
    for weight, step in zip(weights, steps, strict=True):
        weight.assign_add(step)
    add(weights, steps)


def by_search_along(weights, grads):
    """The first of conjugate gradients, whose divisor is a product with a matrix."""
    flat = tf.reshape(grads[0], [-1, 1])
    curved = tf.matmul(tf.eye(64) + 0.1, flat)
    size = tf.reduce_sum(flat * flat) / tf.reduce_sum(flat * curved)
    weights[0].assign(weights[0] - tf.reshape(size * flat, [8, 8]))


def by_search_in_a_loop(weights, grads):
    x, r = tf.zeros([8, 8]), grads[0]
    p = r
    for _ in tf.range(3):
        z = tf.matmul(tf.linalg.diag(tf.range(1.0, 9.0)), p)
        size = tf.reduce_sum(r * r) / tf.reduce_sum(p * z)
        x, before = x + size * p, tf.reduce_sum(r * r)
        r = r - size * z
        p = r + tf.reduce_sum(r * r) / before * p
    weights[0].assign_sub(0.01 * x)


def by_search_from_zeros(weights, grads):
    x = tf.zeros_like(grads[0])
    r = grads[0] - tf.matmul(tf.eye(8) + 0.1, x)
    weights[0].assign_sub(0.01 * r / tf.sqrt(tf.reduce_sum(r * r)))


def by_sum_of_squares(weights, grads):
    norm = tf.sqrt(sum(tf.reduce_sum(g * g) for g in grads))
    add(weights, [g / norm for g in grads])


def by_powers(weights, grads):
    add(weights, [g / tf.reduce_sum(g**2) ** 0.5 for g in grads])


def by_inverse_power(weights, grads):
    add(weights, [g * tf.reduce_sum(g * g) ** -0.5 for g in grads])


def by_norm_of_three(weights, grads):
    add(weights, [g / tf.norm(g, ord=3) for g in grads])


def by_double_norm(weights, grads):
    norms = [tf.norm(tf.cast(g, tf.float64)) for g in grads]
    pairs = zip(grads, norms, strict=True)
    add(weights, [g / tf.cast(norm, tf.float32) for g, norm in pairs])


def bounded(weights, grads):
    """A bound of NaN is NaN."""
    add(weights, [tf.clip_by_value(g / tf.norm(g), -1.0, 1.0) for g in grads])


def in_a_compiled_function(weights, grads):
    tf.function(by_norm, jit_compile=True)(weights, grads)


def in_float32(weights, grads):
    with amp.keep_float32():
        tf.function(by_norm)(weights, grads)


def in_a_function(weights, grads):
    tf.function(by_norm)(weights, grads)


def in_a_branch(weights, grads):
    if tf.reduce_all(tf.math.is_finite(grads[0])):
        by_norm(weights, grads)


def plain(weights, grads):
    add(weights, grads)


def with_epsilon(weights, grads):
    add(weights, [g / (tf.norm(g) + 1e-12) for g in grads])


def with_epsilon_inside(weights, grads):
    add(weights, [g / tf.sqrt(tf.reduce_sum(g * g) + 1e-12) for g in grads])


def with_bound(weights, grads):
    add(weights, [tf.math.l2_normalize(g) for g in grads])


def clipped(weights, grads):
    add(weights, tf.clip_by_global_norm(grads, 1.0)[0])


def clipped_each(weights, grads):
    add(weights, [tf.clip_by_norm(g, 1.0) for g in grads])


def chosen(weights, grads):
    norms = [tf.norm(g) for g in grads]
    pairs = zip(grads, norms, strict=True)
    add(weights, [tf.where(norm > 0.0, g / norm, 0.0 * g) for g, norm in pairs])


def without_nan(weights, grads):
    add(weights, [tf.math.divide_no_nan(g, tf.norm(g)) for g in grads])


def with_bounded_factor(weights, grads):
    add(weights, [g * tf.minimum(1.0, 0.1 / tf.norm(g)) for g in grads])


def clipped_by_a_branch(weights, grads):
    norm = tf.linalg.global_norm(grads)
    if norm > 1.0:
        grads = [g / norm for g in grads]
    add(weights, grads)


def with_divisor_by_a_branch(weights, grads):
    norm = tf.norm(grads[0])
    divisor = tf.cond(norm > 0.0, lambda: norm, lambda: 1.0)
    weights[0].assign_sub(0.1 * grads[0] / divisor)


def by_search_while_it_is_large(weights, grads):
    x, r = tf.zeros([8, 8]), grads[0]
    p, count = r, 0
    while tf.logical_and(count < 3, tf.norm(r) > 1e-3 * tf.norm(grads[0])):
        z = tf.matmul(tf.linalg.diag(tf.range(1.0, 9.0)), p)
        size = tf.reduce_sum(r * r) / tf.reduce_sum(p * z)
        x, before = x + size * p, tf.reduce_sum(r * r)
        r = r - size * z
        p, count = r + tf.reduce_sum(r * r) / before * p, count + 1
    weights[0].assign_sub(0.01 * x)


def adaptive(weights, grads):
    """Adam, with moments that are not zero any more."""
    for weight, g in zip(weights, grads, strict=True):
        first, second = 0.9 * weight + 0.1 * g, 0.999 * weight**2 + 0.001 * g**2
        weight.assign_sub(0.1 * first / (tf.sqrt(second) + 1e-8))


def by_weights_norm(weights, grads):
    add(weights, [g / tf.norm(weights[0]) for g in grads])


def by_an_optimizer(weights, grads):
    grads = [g / tf.norm(g) for g in grads]
    v1.train.GradientDescentOptimizer(0.1).apply_gradients(
        zip(grads, weights, strict=True)
    )


def left_out(weights, grads):
    amp.loss_scaling.apply_if_finite(lambda: by_norm(weights, grads), grads, weights)


KEPT = [
    *(by_norm, by_global_norm, by_largest, by_reciprocal_root, sharpness_aware),
    *(by_search_along, by_search_in_a_loop, by_search_from_zeros, by_sum_of_squares),
    *(by_powers, by_inverse_power, by_norm_of_three, by_double_norm, bounded),
    *(in_a_function, in_a_compiled_function, in_float32, in_a_branch),
]
FINITE = [
    *(plain, with_epsilon, with_epsilon_inside, with_bound, clipped, clipped_each),
    *(chosen, without_nan, with_bounded_factor, clipped_by_a_branch),
    *(with_divisor_by_a_branch, by_search_while_it_is_large),
    *(adaptive, by_weights_norm, by_an_optimizer, left_out),
]


def called(update, weights, xs, xla=None, **fields):
    """The rules of the decisions, after a function was called with each of some x."""
    before = len(amp.reports())

    @tf.function(jit_compile=xla)
    def trained(x):
        update(weights, gradient_of(weights, x))

    with amp.mixed_precision_scope(**{**FIELDS, **fields}):
        for x in xs:
            trained(x)
    (report,) = [r for r in amp.reports()[before:] if "trained" in r.function]
    return {each.rule for each in report.decisions}


@pytest.mark.parametrize("xla", [None, True], ids=["", "xla"])
@pytest.mark.parametrize("update", KEPT)
def test_an_update_that_divides_by_zeros_keeps_the_step_in_float32(
    update, xla, weights
):
    assert "zeroed" in called(update, weights, [0.1 * tf.ones([4, 8])], xla)


@pytest.mark.parametrize("xla", [None, True], ids=["", "xla"])
@pytest.mark.parametrize("update", FINITE)
def test_an_update_that_stays_finite_keeps_nothing(update, xla, weights):
    assert "zeroed" not in called(update, weights, [0.1 * tf.ones([4, 8])], xla)


@pytest.mark.parametrize("update", [*KEPT, *FINITE])
def test_no_overflow_leaves_a_weight_that_is_not_finite(update, weights):
    """An overflow at the first step, as a scale from 2^24 has in float16.

    The scale alone is beyond float16's largest number, 65504.
    """
    weights[0].assign(0.01 * tf.random.stateless_normal([8, 8], [1, 2]))
    x = tf.ones([4, 8])
    called(
        update,
        weights,
        [x, x],
        loss_scale=amp.loss_scaling.DynamicLossScale(initial=2.0**24),
    )
    for weight in weights:
        assert np.isfinite(weight.numpy()).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "bfloat16"},
        {"loss_scale": "none"},
        {"loss_scale": amp.loss_scaling.DynamicLossScale(on_overflow="nan")},
    ],
    ids=["bfloat16", "none", "nan"],
)
def test_without_zeros_nothing_is_kept(fields, weights):
    assert "zeroed" not in called(by_norm, weights, [tf.ones([4, 8])], **fields)


def test_an_update_in_a_session_is_kept_too():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 8])
        w = v1.get_variable("w", [8, 8], use_resource=False)
        before = len(amp.reports())
        with amp.mixed_precision_scope(**FIELDS):
            loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(x, w)))
            (grad,) = tf.gradients(loss, [w])
            train = v1.assign_sub(w, 0.1 * grad / tf.norm(grad))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(train, {x: np.ones([4, 8], np.float32)})
                value = session.run(w)
    rules = {each.rule for r in amp.reports()[before:] for each in r.decisions}
    assert "zeroed" in rules
    assert np.isfinite(value).all()


def test_a_gradient_that_is_unscaled_by_hand_stays_infinite_and_keeps_nothing(weights):
    scaler = amp.loss_scaling.scaler_for(weights, amp.loss_scaling.DynamicLossScale())

    def scaled(weights, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(x, weights[0]) + weights[1]))
            loss = amp.loss_scaling.scale_loss(loss, scaler)
        grads, finite = amp.loss_scaling.unscale(tape.gradient(loss, weights), scaler)
        if finite:
            by_norm(weights, grads)

    @tf.function
    def trained(x):
        scaled(weights, x)

    before = len(amp.reports())
    with amp.mixed_precision_scope(**FIELDS):
        trained(0.1 * tf.ones([4, 8]))
    rules = {each.rule for r in amp.reports()[before:] for each in r.decisions}
    assert rules
    assert "zeroed" not in rules


def test_a_loop_of_tensorflow_1_is_gone_through():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 8])
        w = v1.get_variable("w", [8, 8])
        before = len(amp.reports())
        with amp.mixed_precision_scope(**FIELDS):
            loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(x, w)))
            (grad,) = tf.gradients(loss, [w])
            v1.disable_control_flow_v2()
            try:
                _, found = tf.while_loop(
                    lambda i, g: i < 2,
                    lambda i, g: (i + 1, g / tf.norm(g)),
                    (0, grad),
                )
            finally:
                v1.enable_control_flow_v2()
            train = v1.assign_sub(w, 0.1 * found)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(train, {x: np.ones([4, 8], np.float32)})
    rules = {each.rule for r in amp.reports()[before:] for each in r.decisions}
    assert "zeroed" in rules
