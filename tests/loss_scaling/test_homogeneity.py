"""`homogeneity`: what is certain to be bent is bent; what is linear is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from amp.integration.training import custom_gradients
from amp.loss_scaling import homogeneity

Fn = Callable[[tf.Tensor], tf.Tensor]
X = np.linspace(-2.0, 2.0, 16, dtype=np.float32).reshape(4, 4)
G = np.linspace(-1.0, 1.5, 16, dtype=np.float32).reshape(4, 4)


def until_it_changes_by(least: float, g: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """A fixed point; what it is asked for at first is a number."""

    def body(x: tf.Tensor, change: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        after = 0.5 * x + g
        return after, tf.reduce_max(tf.abs(after - x)) / unit

    first = (g, tf.constant(1e9))
    return tf.while_loop(lambda x, change: change > least, body, first)[0]


BENT: dict[str, Fn] = {
    "clipped by value": lambda g: tf.clip_by_value(g, -0.1, 0.1),
    "clipped by norm": lambda g: tf.clip_by_norm(g, 0.5),
    "clipped on one side": lambda g: tf.minimum(g, 0.1),
    "its sign": tf.sign,
    "left out": lambda g: tf.ones_like(g),
    "given": lambda g: tf.constant(X),
    "filled": lambda g: tf.fill(tf.shape(g), 3.0),
    "shifted": lambda g: g + 1.0,
    "noisy": lambda g: g + tf.random.stateless_normal([4, 4], (1, 2)),
    "squared": lambda g: tf.square(g) @ tf.constant(X),
    "of the root": lambda g: tf.sqrt(tf.abs(g)),
    "divided by it": lambda g: tf.constant(X) / (tf.abs(g) + 1.0),
    "normed to one": lambda g: g / tf.norm(g),
    "squashed": lambda g: 0.1 * tf.tanh(10.0 * g),
    "cut off": lambda g: tf.where(tf.abs(g) > 0.5, g, 0.0),
    "joined": lambda g: tf.concat([g[:2], tf.constant(X)[:2]], 0),
}
LINEAR: dict[str, Fn] = {
    "as it is": tf.identity,
    "times": lambda g: g * tf.sigmoid(tf.constant(X)) * (1.0 + tf.constant(X)),
    "reversed": lambda g: -0.5 * g,
    "product": lambda g: tf.matmul(tf.constant(X), g, transpose_a=True),
    "einsum": lambda g: tf.einsum("ij,jk->ik", g, tf.constant(X)),
    "where it is positive": lambda g: tf.where(g > 0.0, g, tf.zeros_like(g)),
    "guided": lambda g: tf.nn.relu(g) * tf.cast(tf.constant(X) > 0.0, tf.float32),
    "the larger": lambda g: tf.maximum(g, 0.5 * tf.reverse(g, [0])),
    "of its norm": lambda g: g * tf.sqrt(tf.reduce_sum(g**2)) / tf.reduce_max(g),
    "where": lambda g: tf.where(tf.constant(X) > 0.0, g, 0.0),
    "reshaped": lambda g: tf.transpose(tf.reshape(g, [2, 8])),
    "summed": lambda g: tf.reduce_mean(g, 0) + tf.reduce_sum(g, 0),
    "zeros": tf.zeros_like,
    "nothing": lambda g: 0.0 * g,
}
# Gradients of TensorFlow's own, by the position of what comes in; others are numbers.
OWN: dict[str, Fn] = {
    "relu": lambda g: tf.raw_ops.ReluGrad(gradients=g, features=X),
    "relu6": lambda g: tf.raw_ops.Relu6Grad(gradients=g, features=X),
    "elu": lambda g: tf.raw_ops.EluGrad(gradients=g, outputs=X),
    "selu": lambda g: tf.raw_ops.SeluGrad(gradients=g, outputs=X),
    "leaky": lambda g: tf.raw_ops.LeakyReluGrad(gradients=g, features=X),
    "softplus": lambda g: tf.raw_ops.SoftplusGrad(gradients=g, features=X),
    "softsign": lambda g: tf.raw_ops.SoftsignGrad(gradients=g, features=X),
    "tanh": lambda g: tf.raw_ops.TanhGrad(y=X, dy=g),
    "sigmoid": lambda g: tf.raw_ops.SigmoidGrad(y=X, dy=g),
    "sqrt": lambda g: tf.raw_ops.SqrtGrad(y=X, dy=g),
    "rsqrt": lambda g: tf.raw_ops.RsqrtGrad(y=X, dy=g),
    "reciprocal": lambda g: tf.raw_ops.ReciprocalGrad(y=X, dy=g),
    "cumsum": lambda g: tf.cumsum(g, 1),
    "segments": lambda g: tf.math.unsorted_segment_sum(g, [0, 2, 2, 1], 3),
    "scattered": lambda g: tf.scatter_nd([[3], [1], [0], [1]], g, [5, 4]),
}
IMAGE = X[None, :, :, None]
OWN |= {
    "max pool": lambda g: tf.raw_ops.MaxPoolGrad(
        orig_input=IMAGE,
        orig_output=tf.nn.max_pool(tf.constant(IMAGE), 2, 2, "VALID"),
        grad=tf.reshape(g, [1, 4, 4, 1])[:, :2, :2],
        ksize=[1, 2, 2, 1],
        strides=[1, 2, 2, 1],
        padding="VALID",
    ),
    "average pool": lambda g: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[1, 8, 8, 1],
        grad=tf.reshape(g, [1, 4, 4, 1]),
        ksize=[1, 2, 2, 1],
        strides=[1, 2, 2, 1],
        padding="VALID",
    ),
    "resized": lambda g: tf.raw_ops.ResizeBilinearGrad(
        grads=tf.reshape(g, [1, 4, 4, 1]), original_image=tf.ones([1, 8, 8, 1])
    ),
}
LINEAR |= OWN
BENT |= {
    "of a function": lambda g: tf.function(tf.minimum)(g, 0.1),
    "left out by a function": lambda g: tf.function(lambda x: tf.ones_like(x))(g),
    "where no trip makes it zeros": lambda g: tf.minimum(
        tf.while_loop(
            lambda _: tf.constant(X)[0, 0] > 0.0, lambda x: (tf.zeros_like(x),), [g]
        )[0],
        0.1,
    ),
    "row by row": lambda g: tf.map_fn(lambda row: tf.clip_by_norm(row, 0.1), g),
    "in a loop": lambda g: tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, tf.minimum(x, 0.1)), (0, g)
    )[1],
    "until it is small": lambda g: tf.while_loop(
        lambda x: tf.norm(x) > 0.5, lambda x: (0.5 * x,), (g,)
    )[0],
    "until it changes little": lambda g: until_it_changes_by(0.01, g, 1.0),
    "in one of two branches": lambda g: tf.cond(
        tf.constant(X)[0, 0] < 0.0, lambda: tf.clip_by_norm(g, 0.1), lambda: g
    ),
    "by its size in a branch": lambda g: tf.cond(
        tf.norm(g) > 1.0, lambda: g / tf.norm(g), lambda: 2.0 * g
    ),
    "in one of many": lambda g: tf.switch_case(
        tf.cast(tf.constant(X)[3, 3], tf.int32), [lambda: g, lambda: g, lambda: g + 1.0]
    ),
}
LINEAR |= {
    "by a function": lambda g: tf.function(lambda x, y: (y, 2.0 * x))(g, X)[1],
    "sorted": lambda g: tf.sort(g) * 2.0,
    "twice": lambda g: tf.concat([g, 2.0 * g], 0),
    "scanned": lambda g: tf.scan(lambda a, row: 0.5 * a + row, g),
    "doubled row by row": lambda g: tf.map_fn(lambda row: 2.0 * row, g),
    "summed in a loop": lambda g: tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x + g), (0, tf.zeros([4, 4]))
    )[1],
    "of two branches": lambda g: tf.cond(
        tf.constant(X)[0, 0] < 0.0, lambda: 2.0 * g, lambda: g
    ),
}
# Nothing is certain of these: whether the loop runs, and what Python does.
UNKNOWN: dict[str, Fn] = {
    "until it changes little beside it": lambda g: until_it_changes_by(
        0.01, g, tf.reduce_max(g)
    ),
    "of trips": lambda g: tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * g), (0, tf.ones([4, 4]))
    )[1],
    "in one branch": lambda g: tf.cond(
        tf.constant(X)[0, 0] < 0.0, lambda: 2.0 * g, lambda: tf.cos(0.0 * g) * g
    ),
    "by python": lambda g: tf.numpy_function(lambda x: x, [g], tf.float32),
}


def told(fn: Fn, *, hidden: bool = False) -> bool:
    with tf.Graph().as_default() as graph:
        given = tf.constant(G)
        before = len(graph.get_operations())
        result = fn(given)
        made = graph.get_operations()[before:]
        known = homogeneity.Known(custom_gradients._functions)
        return homogeneity.bent(made, [given], [result], known, hidden=hidden)


@pytest.mark.parametrize("name", OWN)
def test_a_clip_behind_a_gradient_of_tensorflows_own_is_seen(name: str) -> None:
    assert told(lambda g: tf.clip_by_value(OWN[name](g), -0.1, 0.1))


def test_what_comes_in_at_another_place_is_not_known() -> None:
    """The value at which a gradient is taken does not enter it linearly."""
    assert not told(lambda g: tf.raw_ops.TanhGrad(y=g, dy=X))
    assert not told(lambda g: tf.raw_ops.TanhGrad(y=g, dy=X) + 1.0)


@pytest.mark.parametrize("name", BENT)
def test_what_clips_takes_signs_or_is_given_is_bent(name: str) -> None:
    once, scaled = BENT[name](tf.constant(G)), BENT[name](tf.constant(8.0 * G))
    assert not np.allclose(scaled, 8.0 * once, rtol=2.0**-20)
    assert told(BENT[name])


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_is_not(name: str) -> None:
    once, scaled = LINEAR[name](tf.constant(G)), LINEAR[name](tf.constant(8.0 * G))
    # Powers of two are exact; what is rounded is rounded alike.
    np.testing.assert_array_equal(scaled, 8.0 * once)
    assert not told(LINEAR[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_not_told(name: str) -> None:
    assert not told(UNKNOWN[name])


def test_of_what_python_computes_is_said_what_is_asked() -> None:
    assert told(UNKNOWN["by python"], hidden=True)
    assert not told(UNKNOWN["of trips"], hidden=True)


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_told_elsewhere_is_of_no_scale(inside: bool) -> None:
    """A variable would be told the size of the gradient times the scale."""
    with tf.Graph().as_default():
        kept, count = tf.Variable(1.0), tf.Variable(0)

    def telling(tell: Fn) -> Fn:
        def fn(g: tf.Tensor) -> tf.Tensor:
            def told_first() -> tf.Tensor:
                with tf.control_dependencies([tell(g)]):
                    return 2.0 * g

            if inside:
                return tf.cond(tf.constant(X)[0, 0] < 0.0, told_first, lambda: g)
            return told_first()

        return fn

    def is_told(tell: Fn) -> bool:
        with kept.graph.as_default() as graph:
            given = tf.constant(G)
            before = len(graph.get_operations())
            result = telling(tell)(given)
            made = graph.get_operations()[before:]
            known = homogeneity.Known(custom_gradients._functions)
            return homogeneity.bent(made, [given], [result], known)

    assert is_told(lambda g: kept.assign(tf.norm(g)))
    assert is_told(lambda g: kept.assign(0.5 * kept + 0.5 * tf.norm(g)))
    assert is_told(lambda g: kept.assign_add(tf.reduce_sum(g)))
    assert not is_told(lambda g: tf.print("gradient", tf.norm(g)))
    assert not is_told(lambda g: tf.debugging.Assert(tf.norm(g) < 1e9, [g]))
    assert not is_told(lambda g: kept.assign(tf.norm(g) / tf.reduce_max(g)))
    assert not is_told(lambda g: count.assign_add(tf.size(g)))
    assert not is_told(lambda g: tf.print("called"))
    assert not is_told(lambda g: tf.debugging.check_numerics(g, "gradient").op)


def test_what_is_returned_beside_a_gradient_need_not_be_one() -> None:
    """New values of a layer's histories, which are computed."""
    with tf.Graph().as_default():
        given = tf.constant(G)
        doubled, history = 2.0 * given, tf.random.uniform([4])
        made = [doubled.op, history.op]
        assert not homogeneity.bent(made, [given], [doubled, history])
        assert homogeneity.bent(made, [given], [history])
        assert not homogeneity.bent(made, [given], [])


def test_what_is_the_same_in_every_run_is_no_gradient_beside_one() -> None:
    """Ones, for a variable that the forward function uses."""
    with tf.Graph().as_default():
        given = tf.constant(G)
        doubled, ones, zeros = 2.0 * given, tf.ones([4, 3]), tf.zeros([4, 3])
        made = [doubled.op, ones.op, zeros.op]
        assert homogeneity.bent(made, [given], [doubled, ones])
        assert not homogeneity.bent(made, [given], [doubled, zeros])
