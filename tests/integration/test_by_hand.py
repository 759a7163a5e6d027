"""Scaling by hand: what a program scales and unscales itself, as with a GradScaler."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.errors import LossScaleError, PolicyError
from amp.integration.distributed import replicas
from amp.loss_scaling import DynamicLossScale
from amp.loss_scaling.process import SCALING

pytestmark = pytest.mark.kernels

ls = amp.loss_scaling
keras = pytest.importorskip("keras")
v1 = tf.compat.v1
RULE = DynamicLossScale(initial=8.0, growth_interval=2)
TYPES = pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
HOW = pytest.mark.parametrize("how", [tf.function, lambda f: f], ids=["graph", "eager"])


@pytest.fixture(autouse=True)
def _process():
    SCALING.reset()
    yield
    amp.disable()
    SCALING.reset()


def scope(dtype, **fields):
    if dtype is None:
        return contextlib.nullcontext()
    fields = {"assignment": "all", "emulate": True, "strict": True, **fields}
    return amp.mixed_precision_scope(dtype=dtype, **fields)


def weights(*shape):
    return tf.Variable(tf.ones(shape or [4, 2]), name="weights")


def hand_step(w, scaler, optimizer=None):
    """A step whose loss is the sum of a row of ones times w, times a factor."""

    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), w)) * factor
            scaled = ls.scale_loss(loss, scaler)
        grads, finite = ls.unscale(tape.gradient(scaled, [w]), scaler)
        if optimizer is not None:
            optimizer.apply(grads, [w])
        scaler.update(finite)
        return scaled, grads[0], finite

    return step


@TYPES
@HOW
def test_a_loss_is_scaled_and_its_gradient_is_not(dtype, how):
    w = weights()
    scaler = ls.scaler_for([w], RULE)
    step = how(hand_step(w, scaler))
    with scope(dtype):
        scaled, grad, finite = step(tf.constant(1.0))
    assert float(scaled) == 8.0 * 8.0
    np.testing.assert_array_equal(grad, np.ones([4, 2]))
    assert bool(finite)
    assert ls.scalers() == [scaler]  # the policy in force has not scaled it again


@HOW
@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable, np.array])
def test_what_is_unscaled_may_be_a_variable_or_an_array(kind, how):
    scaler = ls.scaler_for([weights()], RULE)
    for value, ends in ((8.0, 1.0), (np.inf, np.inf)):
        total = kind(np.full([2], value, np.float32))
        grads, finite = how(lambda total=total: ls.unscale([total, None], scaler))()
        np.testing.assert_array_equal(grads[0], np.full([2], ends))
        assert grads[1] is None
        assert bool(finite) == np.isfinite(value)


@TYPES
@HOW
def test_an_overflow_stays_to_be_seen_skips_the_update_and_moves_the_scale(dtype, how):
    w, optimizer = weights(), keras.optimizers.SGD(0.125)
    optimizer.build([w])
    scaler = ls.scaler_for([w], RULE)
    step = how(hand_step(w, scaler, optimizer))
    path = []
    with scope(dtype):
        for factor in (1.0, np.inf, 1.0, 1.0, 1.0):
            _, grad, finite = step(tf.constant(factor, tf.float32))
            assert bool(finite) == np.isfinite(grad).all() == np.isfinite(factor)
            path.append((float(scaler.scale), int(scaler.skipped_steps)))
    assert path == [(8, 0), (4, 1), (4, 1), (8, 1), (8, 1)]
    assert int(optimizer.iterations) == 4
    np.testing.assert_array_equal(w, np.full([4, 2], 0.5))


def test_two_losses_of_one_step_have_one_scale_whatever_the_order():
    w = weights()
    scaler = ls.scaler_for([w], DynamicLossScale(initial=8.0, growth_interval=1))

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            first = ls.scale_loss(tf.reduce_sum(w), scaler)
            second = ls.scale_loss(tf.reduce_sum(2.0 * w), scaler)
        one, fine = ls.unscale(tape.gradient(first, w), scaler)
        two, good = ls.unscale(tape.gradient(second, w), scaler)
        scaler.update(fine & good)
        return one, two

    for _ in range(3):
        one, two = step()
        np.testing.assert_array_equal(one, np.ones([4, 2]))
        np.testing.assert_array_equal(two, 2 * np.ones([4, 2]))
    assert float(scaler.scale) == 64.0


def penalised(w, scaler, by_hand):
    """The gradient by w of the squared slope of a tiny score, and that slope.

    The number of rows is not known, so the slope is computed from the scaled score: its
    incoming gradient has that one's shape.
    """

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.matmul(tf.nn.tanh(tf.matmul(x, w)), 1e-6 * tf.ones([2, 1]))
                if by_hand:
                    score = ls.scale_loss(score, scaler)
            slope = inner.gradient(score, x)
            if by_hand:
                slope, _ = ls.unscale(slope, scaler, inner=True)
            loss = 1e6 * tf.reduce_mean(tf.square(1e6 * slope))
        return slope, tape.gradient(loss, w)

    return step


def test_slopes_that_float16_loses_are_kept_by_hand():
    x = tf.random.stateless_normal([8, 4], [1, 2])
    w = tf.Variable(0.05 * tf.random.stateless_normal([4, 2], [3, 4]))
    scaler = ls.scaler_for([w], DynamicLossScale(initial=2.0**15))
    exact, _ = penalised(w, scaler, by_hand=False)(x)

    def error(by_hand, **fields):
        with scope("float16", **fields):
            slope, _ = penalised(w, scaler, by_hand)(x)
        return float(tf.norm(slope - exact) / tf.norm(exact))

    # By hand the error is float16's rounding, 2^-11, in each of a few operations; with
    # no scale at all, slopes of 5e-8 are between float16's two smallest numbers. Under
    # a rule that scales, a slope that nobody scales is float32.
    assert 2.0**-13 < error(by_hand=True) < 2.0**-8
    assert error(by_hand=False, loss_scale="none") > 0.1
    assert error(by_hand=False) < 2.0**-13


def test_the_penalty_of_slopes_unscaled_by_hand_is_scaled_by_the_policy():
    x, w = tf.ones([8, 4]), weights()
    scaler = ls.scaler_for([w], RULE)
    with scope("float16"):
        penalised(w, scaler, by_hand=True)(x)
    (_, own) = ls.scalers()
    assert int(own.good_steps) + int(own.bad_steps) + int(own.stalled) > 0


def test_what_is_computed_from_a_scaled_loss_is_not_scaled_again():
    w = weights()
    scaler = ls.scaler_for([w], RULE)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = 2.0 * ls.scale_loss(tf.reduce_sum(w), scaler)
        return ls.unscale(tape.gradient(loss, w), scaler)[0]

    with scope("float16"):
        np.testing.assert_array_equal(step(), 2 * np.ones([4, 2]))
    assert ls.scalers() == [scaler]


def test_none_and_slices_go_through_and_a_structure_stays():
    table, unused = tf.Variable(tf.ones([3, 2])), tf.Variable(1.0)
    scaler = ls.scaler_for({"a": table, "b": unused}, RULE)
    with tf.GradientTape() as tape:
        rows = tf.gather(table, [0, 0, 2])
        scaled = ls.scale_loss(tf.reduce_sum(rows), scaler)
    grads = tape.gradient(scaled, {"a": table, "b": unused})
    found, finite = ls.unscale(grads, scaler)
    assert found["b"] is None
    assert isinstance(found["a"], tf.IndexedSlices)
    np.testing.assert_array_equal(found["a"].values, np.ones([3, 2]))
    assert bool(finite)


def test_double_precision_is_unscaled_in_double_precision():
    w = tf.Variable(tf.constant([1 / 3], tf.float64))
    scaler = ls.scaler_for([w], 3.0)
    with tf.GradientTape() as tape:
        scaled = ls.scale_loss(tf.reduce_sum(w * w), scaler)
    (grad,), _ = ls.unscale(tape.gradient(scaled, [w]), scaler)
    assert abs(float(grad[0]) - 2 / 3) <= 4 * 2.0**-53


def test_the_rule_is_that_of_the_policy_in_force_else_dynamic():
    w = weights()
    assert ls.scaler_for([w]).settings == DynamicLossScale()
    with scope("float16", loss_scale=RULE):
        assert ls.scaler_for([w]).settings == RULE
    with scope("bfloat16"):
        assert float(ls.scaler_for([w]).scale) == 1.0
    assert ls.scaler_for([w], "none", name="mine").name == "mine"


def test_one_line_has_one_scaler():
    w = weights()
    made = {id(ls.scaler_for([w])) for _ in range(3)}
    assert len(made) == len(ls.scalers()) == 1


def test_the_line_is_the_users_where_autograph_has_converted_it():
    w, v = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([2]))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        tape.gradient(loss, w)
        ls.scaler_for([v])

    with scope("float16"):
        step()
    first, second = (scaler.line.split(":") for scaler in ls.scalers())
    assert first[0] == second[0] == "test_by_hand.py"
    assert int(second[1]) == int(first[1]) + 1
    assert [scaler.name for scaler in ls.scalers()] == [
        ":".join(first),
        ":".join(second),
    ]


def test_scalers_by_hand_stand_in_session_graphs_too():
    with tf.Graph().as_default(), scope("float16"):
        w = v1.get_variable("w", [4, 2], initializer=v1.ones_initializer())
        factor = v1.placeholder(tf.float32, [])
        scaler = ls.scaler_for([w], RULE)
        loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), w)) * factor
        (grad,) = tf.gradients(ls.scale_loss(loss, scaler), [w])
        (grad,), finite = ls.unscale([grad], scaler)
        optimizer = v1.train.GradientDescentOptimizer(0.125)
        train = optimizer.apply_gradients([(grad, w)])
        step = tf.group(train, scaler.update(finite))
        assert ls.scalers() == [scaler]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for value in (1.0, np.inf, 1.0):
                session.run(step, {factor: value})
            np.testing.assert_array_equal(session.run(w), np.full([4, 2], 0.75))
            state = scaler.state_dict(session)
    assert state == {"scale": 4.0, "good_steps": 1, "bad_steps": 0, "skipped_steps": 1}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda w: ls.scaler_for([]), LossScaleError, "nothing where variables"),
        (lambda w: ls.scaler_for([1.0, w]), LossScaleError, "float where variables"),
        (lambda w: ls.scaler_for([w], "fast"), PolicyError, "'fast' is not understood"),
        (
            lambda w: ls.scale_loss(tf.constant(1.0, tf.float16), ls.scaler_for([w])),
            LossScaleError,
            "a loss of type float16",
        ),
    ],
)
def test_what_cannot_work_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(weights())


def test_a_strategy_whose_replicas_cannot_agree_is_refused(monkeypatch):
    class Two:
        num_replicas_in_sync = 2

    monkeypatch.setattr(tf.distribute, "get_strategy", Two)
    monkeypatch.setattr(replicas, "ever_agree", lambda: False)
    with pytest.raises(LossScaleError, match="whose replicas cannot agree"):
        ls.scaler_for([weights()])


def looked_at(w, factor):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w) * factor
    with ls.off():
        return tape.gradient(loss, w)


@HOW
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_off_takes_a_gradient_without_scale_state_or_skip(dtype, how):
    w, optimizer = weights(), keras.optimizers.SGD(0.125)
    optimizer.build([w])

    def step():
        seen = looked_at(w, np.float32(np.inf))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        optimizer.apply([tape.gradient(loss, w)], [w])
        return seen

    step = how(step)
    with scope(dtype):
        seen = step()
    np.testing.assert_array_equal(seen, np.full([4, 2], np.inf))
    assert int(optimizer.iterations) == 1
    assert len(ls.scalers()) == (1 if dtype == "float16" else 0)
    assert all(int(s.overflow[0]) == int(s.skipped_steps) == 0 for s in ls.scalers())


def test_off_around_a_function_is_a_trace_of_its_own():
    w = weights()

    @tf.function
    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = tf.reduce_sum(tf.matmul(x, w))
        return tape.gradient(score, [x, w])

    amp.enable(dtype="float16", emulate=True, strict=True)
    with ls.off():
        slopes(tf.ones([1, 4]))
        assert ls.scalers() == []
    slopes(tf.ones([1, 4]))
    assert len(ls.scalers()) == 1
    assert slopes.experimental_get_tracing_count() == 2


def test_off_holds_in_session_graphs_and_as_a_decorator():
    @ls.off()
    def slopes(loss, w):
        return tf.gradients(loss, [w])

    with tf.Graph().as_default(), scope("float16"):
        w = v1.get_variable("w", [4, 2])
        slopes(tf.reduce_sum(w), w)
        assert ls.scalers() == []


def test_off_has_no_effect_where_nothing_is_on():
    w = weights()
    with ls.off():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        tape.gradient(loss, w)
        with amp.keep_float32():
            pass
    assert ls.scalers() == []
