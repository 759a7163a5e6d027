"""The digest of a traced graph tells what it computes, whatever nodes are called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from convergence import traced

Fn = Callable[[tf.Tensor], Any]


def of(function: Fn) -> str:
    spec = tf.TensorSpec([3])
    concrete = tf.function(function, autograph=False).get_concrete_function(spec)
    return traced.digest(concrete.graph)


def looped(step: Fn) -> Fn:
    return lambda x: tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, step(x)), (0, x)
    )[1]


def branched(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(x[0] > 0, lambda: x + 1.0, lambda: x - 1.0)


def branched_otherwise(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(x[0] > 0, lambda: x - 1.0, lambda: x + 1.0)


def changing(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
        return tf.identity(x)


def test_names_do_not_enter() -> None:
    def named(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("another"):
            return tf.multiply(x, 2.0, name="twice")

    assert of(lambda x: x * 2.0) == of(named)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 4.0),
        (lambda x: x - tf.abs(x), lambda x: tf.abs(x) - x),
        (lambda x: tf.cast(x, tf.float16), lambda x: tf.cast(x, tf.bfloat16)),
        (looped(lambda x: x * 2.0), looped(lambda x: x * 4.0)),
        (branched, branched_otherwise),
        (changing, tf.identity),
        (lambda x: (x, x + 1.0), lambda x: (x + 1.0, x)),
    ],
    ids=["constant", "order", "type", "loop", "branch", "control", "results"],
)
def test_what_is_computed_enters(one: Fn, other: Fn) -> None:
    assert of(one) == of(one)
    assert of(one) != of(other)


PROGRAM = """
import sys
import tensorflow as tf
from convergence import traced

tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([]))
w = tf.Variable(2.0)

@tf.function(autograph=False)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.nn.dropout(tf.map_fn(lambda v: v * w, x), 0.5)
    return tape.gradient(loss, w)

sys.stdout.write(traced.digest(step.get_concrete_function(tf.TensorSpec([3])).graph))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_another_process_finds_the_same() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", before + PROGRAM],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for before in ("", "import tensorflow as tf; tf.Variable(1.0)\n")
    ]
    assert len(told[0]) == 16
    assert told[0] == told[1]
