"""The user's nodes have the names that they have without the package."""

from __future__ import annotations

import pytest
import tensorflow as tf

import amp
from amp.loss_scaling import node_names

v1 = tf.compat.v1


def names() -> list[str]:
    """Those of nodes that a program builds after its gradients and its update."""
    x = v1.placeholder(tf.float32, [4, 8])
    ones = v1.ones_initializer()
    weights = v1.get_variable("w", [8, 3], initializer=ones, use_resource=True)
    y = x @ weights
    loss = tf.reduce_mean(tf.square(y))
    (grad,) = tf.gradients(loss, [weights])
    norm = tf.norm(grad)
    before = [tf.identity(y), tf.ones([5]), y * 2.0, tf.cast(y > 0, tf.float32)]
    train = v1.train.AdamOptimizer(0.1).minimize(loss)
    after = [
        tf.math.is_finite(y),
        tf.reduce_all(y > 0),
        tf.stack([y, y]),
        tf.where(y > 0, y, 1.0 / y),
        tf.cond(y[0, 0] > 0, lambda: y, lambda: -y),
        tf.identity(y),
        tf.zeros([5]) + 1.0,
        tf.stop_gradient(y),
    ]
    return [each.name for each in (norm, *before, train, *after)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [64.0, "dynamic"])
def test_nodes_are_named_as_without_a_policy(dtype: str, scale: object) -> None:
    with tf.Graph().as_default():
        plain = names()
    policy = amp.Policy(dtype=dtype, emulate=True, loss_scale=scale, strict=True)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        assert names() == plain


def test_nodes_of_loss_scaling_are_told_from_the_users() -> None:
    assert node_names.ours(f"{node_names.scaler(0)}scale")
    with tf.Graph().as_default(), node_names.apart():
        assert node_names.ours(tf.zeros([2]).op.name)
    assert not node_names.ours("step/amp_loss_scaling/Mul")
    assert not node_names.ours("Adam/update_w")
