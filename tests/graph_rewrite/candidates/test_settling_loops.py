"""`settling_loops`: a loop to a tolerance ends where it ends in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.training import markers

RANDOM = np.random.default_rng(0)
W = (RANDOM.normal(0, 0.5, (64, 64)) / 8).astype("f4")
X = RANDOM.normal(0, 1, (32, 64)).astype("f4")
MOST = 500
Fn = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def by_a_figure(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The body computes the difference, and the condition compares it."""

    def body(k: tf.Tensor, z: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, ...]:
        new = tf.tanh(tf.matmul(z, W) + x)
        return k + 1, new, tf.reduce_max(tf.abs(new - z))

    start = [tf.constant(0), tf.zeros_like(x), tf.constant(1.0)]
    k, z, _ = tf.while_loop(lambda k, z, d: (d > 1e-5) & (k < MOST), body, start)
    return k, z


def between_two_iterates(
    x: tf.Tensor, follow: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """The condition computes the difference of two loop variables."""

    def body(k: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return k + 1, new, follow(new)

    def goes_on(k: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return (tf.reduce_max(tf.abs(new - old)) > 1e-5) & (k < MOST)

    start = [tf.constant(0), tf.zeros_like(x), tf.ones_like(x)]
    k, _, z = tf.while_loop(goes_on, body, start)
    return k, z


def by_two_iterates(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The body computes the next iterate."""
    return between_two_iterates(x, lambda z: tf.tanh(tf.matmul(z, W) + x))


def by_a_flag(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The body compares the difference, and hands on what came out."""

    def body(k: tf.Tensor, z: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, ...]:
        new = tf.tanh(tf.matmul(z, W) + x)
        return k + 1, new, done | (tf.reduce_max(tf.abs(new - z)) < 1e-5)

    start = [tf.constant(0), tf.zeros_like(x), tf.constant(False)]
    k, z, _ = tf.while_loop(lambda k, z, d: ~d & (k < MOST), body, start)
    return k, z


def by_a_count(
    x: tf.Tensor, count: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """The body counts the elements that have not settled."""

    def body(k: tf.Tensor, z: tf.Tensor, m: tf.Tensor) -> tuple[tf.Tensor, ...]:
        new = tf.tanh(tf.matmul(z, W) + x)
        return k + 1, new, count(tf.abs(new - z) > 1e-5)

    start = [tf.constant(0), tf.zeros_like(x), count(tf.constant([True]))]
    k, z, _ = tf.while_loop(lambda k, z, m: (m > 0) & (k < MOST), body, start)
    return k, z


def by_nonzeros(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return by_a_count(x, tf.math.count_nonzero)


def by_a_sum_of_integers(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return by_a_count(x, lambda far: tf.reduce_sum(tf.cast(far, tf.int32)))


def by_a_share(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The count becomes a floating number again."""
    share = lambda far: tf.cast(tf.math.count_nonzero(far), tf.float32) / 4  # noqa: E731
    return by_a_count(x, share)


def by_how_many_are_left(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return by_a_count(x, lambda far: tf.shape(tf.where(far))[0])


def by_a_break(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What AutoGraph makes of `break`: a flag, and branches that read it."""
    k, z = tf.constant(0), tf.zeros_like(x)
    while k < MOST:
        off = tf.tanh(tf.matmul(z, W) + x) - z
        k += 1
        if tf.reduce_max(tf.abs(off)) < 1e-5:
            break
        z = tf.tanh(tf.matmul(z, W) + x)
    return k, z


def by_a_call(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The next iterate comes from a function."""
    follow = tf.function(lambda z: tf.tanh(tf.matmul(z, W) + x))
    return between_two_iterates(x, follow)


def by_its_condition(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The condition computes how far the iterate is from the next one."""

    def step(z: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(z, W) + x)

    def goes_on(k: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        return (tf.reduce_max(tf.abs(step(z) - z)) > 1e-5) & (k < MOST)

    start = [tf.constant(0), tf.zeros_like(x)]
    return tf.while_loop(goes_on, lambda k, z: (k + 1, step(z)), start)


def by_an_inner_loop(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What a trip computes, it computes in three trips of another loop."""

    def inner(z: tf.Tensor) -> tf.Tensor:
        start = [tf.constant(0), z]
        step = lambda i, z: (i + 1, tf.tanh(tf.matmul(z, W) + x))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 3, step, start)[1]

    return between_two_iterates(x, inner)


LOOPS = [
    by_a_figure,
    by_two_iterates,
    by_a_flag,
    by_nonzeros,
    by_a_sum_of_integers,
    by_a_share,
    by_how_many_are_left,
    by_a_break,
    by_a_call,
    by_its_condition,
    by_an_inner_loop,
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fn", LOOPS)
def test_a_loop_to_a_tolerance_ends_as_in_float32(fn: Fn, dtype: str) -> None:
    policy = amp.Policy(dtype=dtype, emulate=True, assignment="all", strict=True)
    want, found = tf.function(fn)(X), amp.twin(fn, X, policy=policy)(X)
    assert int(want[0]) < MOST
    assert int(found[0]) == int(want[0])
    np.testing.assert_array_equal(found[1], want[1])


@pytest.mark.parametrize("fn", [by_a_figure, by_two_iterates, by_a_flag, by_nonzeros])
def test_a_loop_of_tensorflow_1_ends_as_in_float32(fn: Fn) -> None:
    def run(policy: amp.Policy | None) -> list[np.ndarray]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.disable_control_flow_v2()
            fetches = fn(tf.compat.v1.placeholder(tf.float32, X.shape, "x"))
            tf.compat.v1.enable_control_flow_v2()
            assert any(op.type == "LoopCond" for op in session.graph.get_operations())
            with amp.mixed_precision_scope(policy) if policy else nullcontext():
                return session.run(fetches, {"x:0": X})

    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all", strict=True)
    want, found = run(None), run(policy)
    assert want[0] < MOST
    assert found[0] == want[0]
    np.testing.assert_array_equal(found[1], want[1])


def rules(fn: Fn, *specs: tf.TensorSpec) -> dict[str, str]:
    report = rewrite(traced(fn, *specs)[0], settled()).report
    return {d.node.rpartition("/")[2].rpartition("::")[2]: d.rule
            for d in report.decisions}  # fmt: skip


def test_a_loop_that_waits_for_a_figure_of_no_iterate_is_16_bit() -> None:
    """A loss, say: nothing in it is the difference of what the trips gave."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(y: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            new = tf.matmul(y, x, name="product")
            return new, tf.reduce_max(new)

        return tf.while_loop(lambda y, d: d > 1e-3, body, [x, tf.constant(1.0)])[0]

    assert rules(fn, spec(4, 4))["product"] == "compute"


def test_a_loop_that_waits_for_a_choice_or_reads_a_shape_is_16_bit() -> None:
    """A decoder, say: its words are chosen by size, and none of them settles."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, word: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
            y = tf.matmul(y - tf.reduce_max(y, 1, keepdims=True), x, name="product")
            return i + 1, tf.reshape(tf.argmax(y, 1), [4]), y

        def goes_on(i: tf.Tensor, word: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return tf.reduce_any(word != 2) & (i < tf.shape(y)[0]) & (i < tf.size(y))

        start = [tf.constant(0), tf.zeros([4], tf.int64), x]
        shapes = [start[0].shape, start[1].shape, tf.TensorShape([None, 4])]
        return tf.while_loop(goes_on, body, start, shape_invariants=shapes)[2]

    assert rules(fn, spec(4, 4))["product"] == "compute"


@pytest.mark.parametrize("check", [tf.math.is_nan, tf.math.is_inf, tf.math.is_finite])
def test_a_loop_that_ends_at_what_is_not_finite_is_16_bit(check: Fn) -> None:
    """Training that stops at a loss of NaN, say, which waits for nothing to settle."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor, go: tf.Tensor) -> tuple[tf.Tensor, ...]:
            y = tf.matmul(y, x, name="product")
            loss = tf.reduce_mean(tf.square(y - x))
            return i + 1, y, tf.equal(check(loss), check(0.0))

        start = [tf.constant(0), x, tf.constant(True)]
        return tf.while_loop(lambda i, _, go: go & (i < 9), body, start)[1]

    assert rules(fn, spec(4, 4))["product"] == "compute"


def test_a_loop_with_a_break_around_its_update_is_16_bit() -> None:
    """What a branch that reads a gradient says of the end comes of what is in it."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(
            i: tf.Tensor, y: tf.Tensor, *state: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            y = tf.matmul(y, x, name="product")
            loss = tf.reduce_mean(tf.square(y - x))
            with markers.attribute_scope(ir.UNSCALE):
                gradient = tf.identity(y)
            weight, _ = state
            after = weight - gradient * loss
            stops, goes_on = (weight, False), (after, True)
            return i + 1, y, *tf.cond(i >= 5, lambda: stops, lambda: goes_on)

        start = [tf.constant(0), x, x, tf.constant(True)]
        return tf.while_loop(lambda i, y, w, go: go, body, start)[1]

    assert rules(fn, spec(4, 4))["product"] == "compute"


def test_a_loop_that_settles_reads_shapes_off_what_is_16_bit() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(z: tf.Tensor, y: tf.Tensor, m: tf.Tensor) -> tuple[tf.Tensor, ...]:
            new = tf.tanh(tf.matmul(z, x))
            y = tf.matmul(y, x, name="product")
            left = tf.math.count_nonzero(new - z > 1e-5, dtype=tf.int32)
            return new, y, left * tf.shape(y, name="shape")[0]

        start = [x, x, tf.constant(1)]
        return tf.while_loop(lambda z, y, m: m > 0, body, start)[1]

    found = rules(fn, spec(None, 4))
    assert (found["product"], found["shape"]) == ("compute", "follow")


def test_a_loop_of_so_many_trips_is_16_bit() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.matmul(tf.tanh(y), x, name="product") - y

        return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1]

    assert rules(fn, spec(4, 4))["product"] == "compute"
