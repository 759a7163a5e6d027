"""`fingerprint`: equal for what computes the same, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, spec
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph.fingerprint import fingerprint, values
from amp.integration.runtime import definitions

v1 = tf.compat.v1


def of(build: Callable[[], object]) -> str:
    return fingerprint(module_of(graph_def(build)))


def chain(names: str = "", size: int = 8, swapped: bool = False) -> None:
    """tanh(x) times w, or w times tanh(x)."""
    x = v1.placeholder(tf.float32, [size, size], name=f"{names}x")
    w = tf.ones([size, size], name=f"{names}w")
    y = tf.tanh(x, name=f"{names}y")
    a, b = (w, y) if swapped else (y, w)
    tf.matmul(a, b, name=f"{names}end")


def test_names_do_not_enter() -> None:
    assert of(chain) == of(lambda: chain("other_"))


def test_the_order_of_the_nodes_does_not_enter() -> None:
    def one() -> None:
        tf.tanh(tf.ones([2]))
        tf.sigmoid(tf.ones([3]))

    def other() -> None:
        tf.sigmoid(tf.ones([3]))
        tf.tanh(tf.ones([2]))

    assert of(one) == of(other)


@pytest.mark.parametrize("changed", [{"size": 16}, {"swapped": True}])
def test_shapes_and_the_order_of_inputs_enter(changed: dict[str, object]) -> None:
    assert of(lambda: chain(**changed)) != of(chain)


def test_values_and_seeds_do_not_enter() -> None:
    def draw(seed: int, value: float) -> None:
        tf.random.set_seed(seed)
        tf.fill([3], value) * tf.random.uniform([3], seed=seed)

    assert of(lambda: draw(1, 1.0)) == of(lambda: draw(2, 2.0))


def test_the_shapes_of_variables_enter() -> None:
    """A handle has none: layers of 8 and of 16 units differ in what is read only."""

    def step(units: int) -> str:
        kernel = tf.Variable(tf.ones([4, units]))
        rows = tf.Variable(tf.ones([units, 4]))

        def layer(x: tf.Tensor) -> tf.Tensor:
            y = tf.reduce_sum(tf.matmul(x, kernel))
            return y + tf.reduce_sum(tf.gather(rows, tf.constant([0])))

        function = tf.function(layer)
        concrete = function.get_concrete_function(spec(2, 4))
        definitions.remember(concrete.name.decode(), concrete.graph)
        return fingerprint(definitions.read(context_lib.context(), concrete.name))

    assert step(8) == step(8) != step(16)


def test_the_numbers_of_small_constants_have_a_name_of_their_own() -> None:
    def scaled(factor: float, bias: float = 0.0) -> Callable[[], object]:
        x = tf.ones([64]).numpy() * bias
        return lambda: v1.placeholder(tf.float32, [64]) * factor + tf.constant(x)

    one, same, other = (module_of(graph_def(scaled(f))) for f in (1.0, 1.0, 1 / 255))
    assert fingerprint(one) == fingerprint(other)
    assert values(one) == values(same) != values(other)
    assert values(module_of(graph_def(scaled(1.0, bias=3.0)))) == values(one)


def test_attributes_enter() -> None:
    x = [2, 2]
    assert of(lambda: tf.matmul(tf.ones(x), tf.ones(x))) != of(
        lambda: tf.matmul(tf.ones(x), tf.ones(x), transpose_b=True)
    )


def test_what_is_added_enters() -> None:
    module = module_of(graph_def(chain))
    assert fingerprint(module) != fingerprint(module, "cpu")
    assert fingerprint(module, "a", "b") != fingerprint(module, "ab")
