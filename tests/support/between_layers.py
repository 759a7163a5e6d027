"""What is decided of something between two layers. No test lives here."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from rewriting import graph_def, rewritten, rules, v1

WIDTH = 8
Between = Callable[[tf.Tensor], tf.Tensor]


def found(between: Between, gradient: bool = False, **fields: object) -> dict[str, str]:
    """The rules for a layer with a bias, something, and another product."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
        one = tf.matmul(x, tf.ones([WIDTH, WIDTH]), name="one")
        biased = tf.nn.bias_add(one, tf.ones([WIDTH]), name="biased")
        two = tf.matmul(between(biased), tf.ones([WIDTH, WIDTH]), name="two")
        if gradient:
            tf.identity(tf.gradients(two, x)[0], name="grad")

    fetches = ["grad"] if gradient else ["two"]
    return rules(rewritten(graph_def(build), fetches=fetches, **fields).report)
