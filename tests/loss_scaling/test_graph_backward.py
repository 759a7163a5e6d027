"""`graph_backward`: what Python bends in a graph is as it is without loss scaling."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from custom_gradients import reading_rows

import amp
from amp.graph_rewrite.graph.ir import UNSCALE
from amp.loss_scaling import DynamicLossScale

SCALED = amp.Policy(dtype="float16", emulate=True, loss_scale="dynamic", check=False)
ROWS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
Backward = Callable[..., Any]
Through = Callable[[tf.Tensor], tf.Tensor]
NUMBERS = itertools.count()  # no two gradients are registered under one name

BENT: dict[str, Backward] = {
    "clipped": lambda dy: tf.clip_by_norm(dy, 0.5),
    "of its sign": tf.sign,
    "left out": tf.ones_like,
    "given": lambda dy: tf.constant(3.0, shape=[4, 2]),
    "quantized": lambda dy: tf.quantization.fake_quant_with_min_max_args(dy, -1, 1),
    "row by row": lambda dy: tf.map_fn(lambda row: tf.clip_by_norm(row, 0.5), dy),
    "by NumPy": lambda dy: tf.ensure_shape(
        tf.numpy_function(lambda x: np.clip(x, -0.1, 0.1), [dy], tf.float32), [4, 2]
    ),
}


def with_backward(backward: Backward) -> Through:
    @tf.custom_gradient
    def through(y: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        return tf.identity(y), backward

    return through


def stepping(through: Through) -> Any:
    """A function that takes the gradient of a weight, through such a function."""
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(through(x @ weight) ** 2)
        return tape.gradient(loss, weight)

    return step


def in_a_function(
    backward: Backward = tf.identity, through: Through | None = None
) -> np.ndarray:
    through = through or with_backward(backward)
    found: np.ndarray = stepping(through)(tf.constant(ROWS)).numpy()
    return found


def in_a_session(
    backward: Backward = tf.identity, through: Through | None = None
) -> np.ndarray:
    through = through or with_backward(backward)
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", initializer=np.ones([3, 2], "f"))
        loss = tf.reduce_sum(through(tf.constant(ROWS) @ weight) ** 2)
        (gradient,) = tf.gradients(loss, [weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found: np.ndarray = session.run(gradient)
            return found


def overridden(backward: Backward) -> np.ndarray:
    """In a session, by a gradient that takes the place of an operation's own."""
    name = f"test_{next(NUMBERS)}"
    tf.RegisterGradient(name)(lambda op, dy: backward(dy))
    with tf.Graph().as_default() as graph:
        weight = tf.compat.v1.get_variable("w", initializer=np.ones([3, 2], "f"))
        product = tf.constant(ROWS) @ weight
        with graph.gradient_override_map({"Identity": name}):
            through = tf.identity(product)
        (gradient,) = tf.gradients(tf.reduce_sum(through**2), [weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found: np.ndarray = session.run(gradient)
            return found


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    # Products of 3, and of 4 rows up to 1, each rounded to 2**-11 in float16.
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=2.0**-10)


@pytest.mark.parametrize("how", [in_a_function, in_a_session, overridden])
@pytest.mark.parametrize("name", BENT)
def test_what_bends_its_gradient_meets_no_scale(
    how: Callable[[Backward], np.ndarray], name: str
) -> None:
    expected = how(BENT[name])
    with amp.mixed_precision_scope(SCALED):
        assert_near(how(BENT[name]), expected)


@pytest.mark.parametrize("how", [in_a_function, in_a_session])
def test_what_bends_in_a_function_that_python_runs_meets_no_scale(
    how: Callable[..., np.ndarray],
) -> None:
    clipped = with_backward(BENT["clipped"])

    def run(y: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(clipped, [y], tf.float32), [4, 2])

    expected = how(through=run)
    assert_near(expected, how(BENT["clipped"]))
    with amp.mixed_precision_scope(SCALED):
        assert_near(how(through=run), expected)


def test_one_that_keeps_what_it_has_seen_keeps_it_without_the_scale() -> None:
    """And so divides by what it divides by without scaling."""

    def trained() -> tuple[list[np.ndarray], float]:
        kept = tf.Variable(1.0)

        def normalised(dy: tf.Tensor) -> tf.Tensor:
            before = tf.identity(kept)
            kept.assign(0.5 * kept + 0.5 * tf.norm(dy))
            return dy / before

        step = stepping(with_backward(normalised))
        return [step(tf.constant(ROWS)).numpy() for _ in range(3)], float(kept)

    expected, kept = trained()
    with amp.mixed_precision_scope(SCALED):
        found, kept_scaled = trained()
    np.testing.assert_allclose(kept_scaled, kept, rtol=2.0**-8)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


def test_one_that_ends_once_little_changes_ends_as_soon() -> None:
    """Though times the scale it never changes by so little; planted, it would hang."""
    trips: list[int] = []

    def settled(dy: tf.Tensor) -> tf.Tensor:
        def body(
            x: tf.Tensor, change: tf.Tensor, trip: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            after = 0.5 * x + dy
            return after, tf.reduce_max(tf.abs(after - x)), trip + 1

        def goes_on(x: tf.Tensor, change: tf.Tensor, trip: tf.Tensor) -> tf.Tensor:
            return (change > 1e-3) & (trip < 1000)

        first = (dy, tf.constant(1e9), tf.constant(0))
        found, _, trip = tf.while_loop(goes_on, body, first)
        tf.py_function(lambda count: trips.append(int(count)), [trip], [])
        return found

    expected = in_a_function(settled)
    with amp.mixed_precision_scope(SCALED):
        assert_near(in_a_function(settled), expected)
    assert trips[0] == trips[-1] < 20


def checked(y: tf.Tensor) -> tf.Tensor:
    return tf.debugging.check_numerics(y, "activation")


def checked_in_a_function(y: tf.Tensor) -> tf.Tensor:
    found: tf.Tensor = tf.function(checked)(y)
    return found


@pytest.mark.parametrize("how", [in_a_function, in_a_session])
@pytest.mark.parametrize("through", [checked, checked_in_a_function])
def test_a_check_does_not_end_a_job_at_an_overflow_of_the_scale(
    how: Callable[..., np.ndarray], through: Through
) -> None:
    """TensorFlow's gradient of a check for infinities is one of the gradient."""
    large = amp.Policy(
        dtype="float16",
        emulate=True,
        loss_scale=DynamicLossScale(initial=2.0**126, maximum=2.0**126),
        check=False,
        assignment="all",
    )
    with amp.mixed_precision_scope(large):
        found = how(through=lambda y: through(1e3 * y))
    assert not np.isfinite(found).any() or not found.any()  # it was left out


@pytest.mark.parametrize("how", [in_a_function, in_a_session])
@pytest.mark.parametrize("scale", ["none", 8.0])
def test_a_check_without_a_dynamic_scale_ends_the_job_as_ever(
    how: Callable[..., np.ndarray], scale: Any
) -> None:
    infinite = with_backward(lambda dy: dy * np.float32(np.inf))
    policy = amp.Policy(dtype="float16", emulate=True, loss_scale=scale, check=False)
    ends = pytest.raises(tf.errors.InvalidArgumentError, match="in gradient")
    with amp.mixed_precision_scope(policy), ends:
        how(through=lambda y: infinite(checked(y)))


def test_what_python_computes_runs_once() -> None:
    """Though a tape has noted what it read."""
    runs: list[int] = []

    def clip(x: np.ndarray) -> np.ndarray:
        runs.append(1)
        return np.clip(x, -0.1, 0.1)

    through = with_backward(lambda dy: tf.numpy_function(clip, [dy], tf.float32))
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(through(x @ weight) ** 2)
            return tape.gradient(loss, weight)

    with amp.mixed_precision_scope(SCALED):
        step(tf.constant(ROWS))
    assert len(runs) == 1


def test_ones_for_a_variable_beside_a_gradient_meet_no_scale() -> None:
    """As TensorFlow's own `testCustomGradientWithVariables` has them."""
    weight = tf.Variable(tf.fill([3, 2], 0.125))

    @tf.custom_gradient
    def product(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        def backward(dy: tf.Tensor, variables: Any = None) -> Any:
            return tf.matmul(dy, weight, transpose_b=True), [tf.ones([3, 2])]

        return x @ weight, backward

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        return tape.gradient(y, [x, weight])

    with amp.mixed_precision_scope(SCALED):
        of_x, of_weight = step(tf.constant(ROWS))
    # A product of ones with eighths, of which float16 has all sums.
    np.testing.assert_array_equal(of_x, np.full([4, 3], 0.25))
    np.testing.assert_array_equal(of_weight, np.ones([3, 2]))


def markers(backward: Backward) -> int:
    """How many nodes of a step unscale, one of which is of the weight's gradient."""
    with amp.mixed_precision_scope(SCALED):
        graph = (
            stepping(with_backward(backward))
            .get_concrete_function(tf.constant(ROWS))
            .graph
        )
    return sum(UNSCALE in op.node_def.attr for op in graph.get_operations())


def test_of_a_linear_one_nothing_is_built_besides() -> None:
    calls: list[tf.Tensor] = []

    def doubled(dy: tf.Tensor) -> tf.Tensor:
        calls.append(dy)
        return 2.0 * dy

    assert markers(doubled) == 1
    assert len(calls) == 1
    assert markers(tf.sign) == 2


def test_one_that_reads_the_scale_is_right_as_it_is() -> None:
    def clipped(dy: tf.Tensor) -> tf.Tensor:
        scaler = amp.loss_scaling.scalers()[-1]
        return tf.clip_by_norm(dy, 0.5 * scaler.scale)

    assert markers(clipped) == 1


def test_one_with_an_effect_has_it_once_and_meets_no_scale() -> None:
    seen = tf.Variable(0.0)

    def counted(dy: tf.Tensor) -> tf.Tensor:
        seen.assign_add(1.0)
        return tf.sign(dy)

    expected = in_a_function(counted)
    with amp.mixed_precision_scope(SCALED):
        assert_near(in_a_function(counted), expected)
    assert seen.numpy() == 2.0


@pytest.mark.parametrize("how", [in_a_function, in_a_session])
def test_one_that_can_be_called_once_is_called_once(how: Any) -> None:
    def clipping() -> Backward:
        left = [0.5]
        return lambda dy: tf.clip_by_norm(dy, left.pop())

    expected = how(clipping())
    with amp.mixed_precision_scope(SCALED):
        assert_near(how(clipping()), expected)


def test_a_tape_around_it_that_records_sees_the_clip() -> None:
    """The gradient of a gradient, which the tape has by what it noted."""
    weight, through = tf.Variable(tf.ones([3, 2])), with_backward(BENT["clipped"])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(through(x @ weight) ** 2)
            gradient = inner.gradient(loss, weight)
            penalty = tf.reduce_sum(gradient**3)
        return outer.gradient(penalty, weight)

    expected = step(tf.constant(ROWS)).numpy()
    assert expected.any()
    with amp.mixed_precision_scope(SCALED):
        found = step(tf.constant(ROWS)).numpy()
    # Nothing of so small a step is in 16 bits, and the scale is a power of two.
    np.testing.assert_allclose(found, expected, rtol=2.0**-20, atol=0.0)


def branched(y: tf.Tensor, through: Backward) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(y) < 1e9, lambda: through(y), lambda: -y)


def branched_twice(y: tf.Tensor, through: Backward) -> tf.Tensor:
    inner = lambda: branched(y, through)  # noqa: E731
    return tf.cond(tf.reduce_sum(y) < 1e9, inner, lambda: -y)


def looped(y: tf.Tensor, through: Backward) -> tf.Tensor:
    body = lambda i, y: (i + 1, 0.5 * through(y))  # noqa: E731
    return tf.while_loop(lambda i, y: i < 2, body, (0, y))[1]


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("around", [branched, branched_twice, looped])
@pytest.mark.parametrize("session", [False, True])
def test_it_may_be_in_a_branch_or_loop(around: Any, name: str, session: bool) -> None:
    through = with_backward(BENT[name])

    def gradient() -> Any:
        with tf.Graph().as_default() if session else contextlib.nullcontext():
            weight = tf.Variable(tf.ones([3, 2]))

            def taken() -> tf.Tensor:
                y = tf.constant(ROWS) @ weight
                return tf.gradients(tf.reduce_sum(around(y, through) ** 2), weight)[0]

            if not session:
                return tf.function(taken)().numpy()
            result = taken()
            with tf.compat.v1.Session() as running:
                running.run(tf.compat.v1.global_variables_initializer())
                return running.run(result)

    expected = gradient()
    with amp.mixed_precision_scope(SCALED):
        assert_near(gradient(), expected)


def test_it_may_be_in_what_is_mapped() -> None:
    through = with_backward(BENT["of its sign"])
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step() -> tf.Tensor:
        y = tf.map_fn(through, tf.constant(ROWS) @ weight)
        return tf.gradients(tf.reduce_sum(y**2), weight)[0]

    expected = step().numpy()
    with amp.mixed_precision_scope(SCALED):
        assert_near(step().numpy(), expected)


@pytest.mark.parametrize("outer", ["linear", "left out"])
@pytest.mark.parametrize("inner", BENT)
def test_two_that_are_one_inside_the_other(inner: str, outer: str) -> None:
    """What the outer one builds has a gradient in it that meets no scale either."""
    through = with_backward(BENT[inner])

    def gradient() -> np.ndarray:
        weight = tf.Variable(tf.ones([3, 2]))

        @tf.custom_gradient
        def around(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
            y = through(x @ weight)

            def backward(dy: tf.Tensor, variables: Any = None) -> Any:
                assert variables is not None
                of_x, of_weight = tf.gradients(y, [x, weight], grad_ys=dy)
                ours = of_weight if outer == "linear" else tf.ones_like(of_weight)
                return of_x, [ours]

            return y, backward

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(around(x) ** 2)
            return tape.gradient(loss, weight)

        found: np.ndarray = step(tf.constant(ROWS)).numpy()
        return found

    expected = gradient()
    with amp.mixed_precision_scope(SCALED):
        assert_near(gradient(), expected)


@pytest.mark.parametrize("wrapped", [tf.recompute_grad, lambda layer: layer])
def test_a_session_finds_the_variables_of_what_is_computed_again(wrapped: Any) -> None:
    """TensorFlow walks back to all variables, and knows those of the program."""
    through = with_backward(BENT["clipped"])

    def gradient() -> np.ndarray:
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable(
                "w", initializer=np.ones([3, 2], "f"), use_resource=True
            )

            def layer(x: tf.Tensor) -> tf.Tensor:
                product = tf.reduce_sum(through(x @ weight) ** 2)
                step = tf.gradients(product, weight)[0]
                return x @ (weight - 0.125 * step)

            loss = tf.reduce_sum(wrapped(layer)(tf.constant(ROWS)) ** 2)
            (taken,) = tf.gradients(loss, [weight])
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                found: np.ndarray = session.run(taken)
                return found

    expected = gradient()
    with amp.mixed_precision_scope(SCALED):
        assert_near(gradient(), expected)


def test_a_function_that_is_called_may_clip() -> None:
    clipped = tf.function(BENT["clipped"])
    expected = in_a_function(clipped)
    with amp.mixed_precision_scope(SCALED):
        assert_near(in_a_function(clipped), expected)


def test_one_that_reads_the_scale_in_a_branch_is_right_as_it_is() -> None:
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(clips: bool) -> tf.Tensor:
        y = tf.constant(ROWS) @ weight
        if clips:  # the scaler is made by the first trace
            limit = 0.5 * amp.loss_scaling.scalers()[-1].scale
            y = branched(y, with_backward(lambda dy: tf.clip_by_norm(dy, limit)))
        return tf.gradients(tf.reduce_sum(y**2), weight)[0]

    with amp.mixed_precision_scope(SCALED):
        step(False)
        found = step(True).numpy()
    assert_near(found, in_a_function(BENT["clipped"]))


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_gradient_that_begins_inside_another_has_no_scale(eagerly: bool) -> None:
    """One that a backward function takes of what it computes itself."""
    weight, through = tf.Variable(tf.ones([3, 2])), with_backward(BENT["clipped"])

    @tf.custom_gradient
    def around(y: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        def backward(dy: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(y)
                own = tf.reduce_sum(through(y) ** 2)
            return dy * tape.gradient(own, y)

        return tf.identity(y), backward

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(around(tf.constant(ROWS) @ weight) ** 2)
        return tape.gradient(loss, weight)

    run = step if eagerly else tf.function(step)
    expected = run().numpy()
    with amp.mixed_precision_scope(SCALED):
        assert_near(run().numpy(), expected)


def test_one_in_16_bits_keeps_the_scale_that_it_needs() -> None:
    def low(dy: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.sign(tf.cast(dy, tf.float16)), tf.float32)

    assert markers(low) == 1


def test_an_overflow_does_not_end_at_a_clip() -> None:
    """A clipped infinity would be taken for a gradient."""
    weight = tf.Variable(tf.ones([3, 2]))
    optimizer = tf.keras.optimizers.SGD(1.0)
    through = with_backward(BENT["clipped"])

    @tf.function
    def step(x: tf.Tensor, factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(through(x @ weight) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    rule = DynamicLossScale(initial=2.0**10)
    policy = amp.Policy(dtype="float16", emulate=True, loss_scale=rule, check=False)
    with amp.mixed_precision_scope(policy):
        step(tf.constant(ROWS), tf.constant(np.inf))
        assert weight.numpy().tolist() == np.ones([3, 2]).tolist()
        scaler = amp.loss_scaling.scalers()[-1]
        assert (scaler.skipped_steps.numpy(), scaler.scale.numpy()) == (1, 2.0**9)
        step(tf.constant(ROWS), tf.constant(1.0))
    assert weight.numpy().tolist() != np.ones([3, 2]).tolist()


def test_variables_rows_and_what_has_no_gradient_are_handed_on() -> None:
    def found() -> list[np.ndarray]:
        table, weight = tf.Variable(tf.ones([4, 2])), tf.Variable(3.0)

        read = reading_rows(weight)

        @tf.function
        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                rows = read(tf.identity(table), tf.constant([0, 2]))
                loss = tf.reduce_sum(rows)
            return [*map(tf.convert_to_tensor, tape.gradient(loss, [table, weight]))]

        return [gradient.numpy() for gradient in step()]

    expected = found()
    with amp.mixed_precision_scope(SCALED):
        for one, other in zip(found(), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert expected[1] == 1.0


def test_one_inside_another_meets_no_scale_either() -> None:
    inner = with_backward(BENT["of its sign"])

    def outer(dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.ones_like(dy)
            tape.watch(x)
            again = tf.reduce_sum(inner(x) * dy)
        return tape.gradient(again, x)

    expected = in_a_function(outer)
    with amp.mixed_precision_scope(SCALED):
        assert_near(in_a_function(outer), expected)


def in_a_loop(through: Backward, weight: Any) -> tf.Tensor:
    return tf.compat.v1.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, through(y @ weight)),
        [0, tf.constant(ROWS)],
    )[1]


def of_each_row(through: Backward, weight: Any) -> tf.Tensor:
    """TensorFlow keeps rows in arrays, and tells their gradients apart by names."""
    return tf.map_fn(through, tf.constant(ROWS) @ weight)


@pytest.mark.parametrize("around", [in_a_loop, of_each_row])
def test_a_loop_of_tensorflow_1_may_be_around_it(
    around: Callable[[Backward, Any], tf.Tensor],
) -> None:
    def found() -> np.ndarray:
        through = with_backward(BENT["clipped"])
        with tf.Graph().as_default():
            tf.compat.v1.disable_control_flow_v2()
            try:
                weight = tf.compat.v1.get_variable(
                    "w", initializer=0.5 * np.eye(3, dtype=np.float32)
                )
                out = around(through, weight)
                (gradient,) = tf.gradients(tf.reduce_sum(out**2), [weight])
            finally:
                tf.compat.v1.enable_control_flow_v2()
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                value: np.ndarray = session.run(gradient)
                return value

    expected = found()
    with amp.mixed_precision_scope(SCALED):
        assert_near(found(), expected)
