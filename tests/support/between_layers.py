"""What is decided of something between two layers, and of functions.

No test lives here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf
from rewriting import graph_def, rewritten, rules, settled, traced, v1

from amp.graph_rewrite.rewrite import rewrite

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


def rules_of(fn: Callable[..., object], *specs: tf.TensorSpec) -> dict[str, str]:
    """The rules of a function's nodes, and of those that it calls, by last names."""
    found = rules(rewrite(traced(fn, *specs)[0], settled()).report)
    return {re.split("::|/", name)[-1]: rule for name, rule in found.items()}
