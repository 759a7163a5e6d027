"""`results`: what a function gives that rounding changes by little."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import step_copies
import tensorflow as tf
from frames import version_1
from step_copies import Linear, X, module_of

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import copies, inner_steps, wanted_results
from amp.graph_rewrite.normalize.wanted import NotRepeatable

WEIGHT = np.float32([[1.0], [2.0], [3.0]])
SQUARE = np.eye(3, dtype="f")


def product(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, WEIGHT)


def of_tensorflow_1(x: tf.Tensor) -> tf.Tensor:
    """A product of one loop that another one hands on."""
    with version_1():
        for _ in range(2):
            _, x = tf.compat.v1.while_loop(
                lambda i, _: i < 2, lambda i, y: (i + 1, tf.matmul(y, SQUARE)), [0, x]
            )
    return x


def until_small(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda y: tf.reduce_max(y) > 1.5, lambda y: (0.5 * tf.matmul(y, SQUARE),), [x]
    )[0]


NUMBERS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "product": product,
    "root": lambda x: tf.sqrt(tf.abs(product(x))),
    "largest": lambda x: tf.nn.top_k(product(x))[0],
    "chosen": lambda x: tf.where(product(x) > 0.5, product(x), 0.1 * product(x)),
    "divided by its size": lambda x: (
        product(x) / tf.cast(tf.size(product(x)), tf.float32)
    ),
    "rows by what was given": lambda x: tf.gather(
        product(x), tf.cast(tf.reduce_sum(x, 1) > 0.0, tf.int32)
    ),
    "loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, tf.matmul(y, SQUARE)), [0, x]
    )[1],
    "until it is small": until_small,
    "loops of TensorFlow 1": of_tensorflow_1,
    "branch": lambda x: tf.cond(
        tf.reduce_sum(x) > 0.0, lambda: product(x), lambda: 2.0 * product(x)
    ),
    "chosen in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2,
        lambda i, y: (i + 1, tf.where(y > 0.5, tf.matmul(y, SQUARE), 0.1 * y)),
        [0, x],
    )[1],
    "double": lambda x: tf.cast(product(x), tf.float64),
    "complex": lambda x: tf.complex(product(x), product(x)),
}


def signs(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(product(x) > 0.0, tf.float32)


JUMPS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "no product": lambda x: x + 1.0,
    "whole": lambda x: tf.argmax(product(x), 0),
    "sign": lambda x: tf.sign(product(x)),
    "rounded": lambda x: tf.round(product(x)),
    "of two constants": lambda x: tf.where(product(x) > 0.0, 1.0, -1.0),
    "text": lambda x: tf.strings.as_string(product(x)),
    "counted": lambda x: tf.reduce_mean(signs(x)),
    "ranked": lambda x: tf.gather(x, tf.argsort(product(x)[:, 0])),
    "behind what jumps": lambda x: product(x) + signs(x),
    "branch": lambda x: tf.cond(
        tf.reduce_sum(product(x)) > 0.0, lambda: product(x), lambda: 2.0 * product(x)
    ),
    "in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, y + signs(y)), [0, x]
    )[1],
}


@pytest.mark.parametrize("give", NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_rounding_changes_by_little_are_wanted(
    give: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    function = tf.function(give)
    module = module_of(function, X)
    wanted = wanted_results.results(module)
    assert [read.node for read in wanted.reads] == [""]
    assert not wanted.gradients
    copy = copies.computing(module, wanted, f"{module.main.name}_copy")
    (found,) = step_copies.call(copy, [X])
    np.testing.assert_allclose(found, function(X), rtol=1e-6)


@pytest.mark.parametrize("give", JUMPS.values(), ids=JUMPS)
def test_what_no_product_computes_or_may_jump_is_not(
    give: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    with pytest.raises(NotRepeatable, match=wanted_results.NONE):
        wanted_results.results(module_of(tf.function(give), X))


def test_results_of_what_is_trained_are_not() -> None:
    module = module_of(Linear(tf.reduce_sum).step, X)
    with pytest.raises(NotRepeatable, match="no gradients of variables"):
        wanted_results.results(module)


def test_what_is_written_is_wanted_and_not_written_in_a_copy() -> None:
    """A counter is none."""
    total, count = tf.Variable([[0.0], [0.0]]), tf.Variable(0)

    @tf.function
    def evaluate(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = product(x)
        total.assign_add(found)
        count.assign_add(1)
        return found, 2.0 * found

    module = module_of(evaluate, X)
    wanted = wanted_results.results(module)
    *results, written = [read.node for read in wanted.reads]
    assert results == ["", ""]
    assert module.main.nodes[written].op == "AssignAddVariableOp"
    copy = copies.computing(module, wanted, "evaluated")
    inputs = [X, *evaluate.get_concrete_function(X).captured_inputs]
    first, second, third = step_copies.call(copy, inputs)
    np.testing.assert_array_equal(first, product(X))
    np.testing.assert_array_equal(second, 2.0 * product(X))
    np.testing.assert_array_equal(third, product(X))
    assert not np.any(total.numpy())
    assert int(count) == 0


@pytest.mark.parametrize("form", ["loop", "reduced"])
def test_no_dataset_is_read_once_more(form: str) -> None:
    """Of a generator, or a `map` that counts, elements would be lost."""
    data = tf.data.Dataset.from_tensor_slices([X, 2 * X])

    @tf.function
    def evaluate() -> tf.Tensor:
        total = tf.zeros([2, 1])
        if form == "reduced":
            return data.reduce(total, lambda total, x: total + product(x))
        for x in data:
            total += product(x)
        return total

    with pytest.raises(NotRepeatable, match=wanted_results.NONE):
        wanted_results.results(module_of(evaluate))


def test_a_batch_is_recorded_and_what_a_call_keeps_is_not_wanted() -> None:
    batches = iter(tf.data.Dataset.from_tensor_slices([X, 2 * X]))
    state = tf.Variable(1.0)

    def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.matmul(y, SQUARE) * state.assign_add(1.0)

    @tf.function
    def evaluate() -> tuple[tf.Tensor, tf.Tensor]:
        x = next(batches)
        return product(x), tf.while_loop(lambda i, _: i < 2, body, [0, x])[1]

    wanted = wanted_results.results(module_of(evaluate))
    assert [type_ for _, type_ in wanted.taken] == [ir.FLOAT]
    assert [read.number for read in wanted.reads] == [0]


@pytest.mark.parametrize("form", ["compiled", "loop", "compiled in a loop"])
def test_what_is_written_in_a_call_or_loop_is_wanted(form: str) -> None:
    """As Keras evaluates, under XLA and with several steps in one execution."""
    total = tf.Variable([[0.0], [0.0]])

    @tf.function(jit_compile="compiled" in form)
    def inner(x: tf.Tensor) -> None:
        total.assign_add(product(x))

    @tf.function
    def evaluate(x: tf.Tensor) -> None:
        for _ in tf.range(2 if "loop" in form else 1):
            inner(x)

    @tf.function
    def once(x: tf.Tensor) -> None:
        inner(x)

    function = evaluate if "loop" in form else once
    module = module_of(function, X)
    wanted = wanted_results.results(module)
    assert len(wanted.reads) == 1
    assert wanted.way
    assert (wanted.kept is None) == ("loop" not in form)


def test_functions_that_call_functions_twice_are_looked_at_once() -> None:
    """There are 2**10 ways down, and 10 functions."""

    def deeper(depth: int) -> Callable[[tf.Tensor], tf.Tensor]:
        if not depth:
            return lambda x: x + 1.0
        inner = tf.function(deeper(depth - 1), jit_compile=True)
        return lambda x: inner(inner(x))

    module = module_of(tf.function(deeper(10)), X)
    assert [len(way) for way in inner_steps.every_way(module)] == [*range(11)]
    with pytest.raises(NotRepeatable, match=wanted_results.NONE):
        wanted_results.results(module)
