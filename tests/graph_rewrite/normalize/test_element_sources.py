"""`element_sources`: the arguments whose elements a function takes, anywhere in it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.element_sources import ElementSource, element_sources
from amp.integration import install
from amp.integration.runtime import definitions

WIDTH = 4


@pytest.fixture(autouse=True)
def hooks() -> None:
    """Shapes are those of the graph that a function was traced as."""
    install.install()


def sources(fn: Any, *args: Any) -> tuple[ElementSource, ...]:
    concrete = tf.function(fn).get_concrete_function(*args)
    name = concrete.name if isinstance(concrete.name, str) else concrete.name.decode()
    return element_sources(definitions.read(context_lib.context(), name))


def data(known: bool = False) -> tf.data.Dataset:
    made = tf.data.Dataset.from_tensor_slices(tf.ones([6, WIDTH]))
    return made.batch(4, drop_remainder=known)


def test_a_dataset_is_found_through_the_loops_around_its_own() -> None:
    def fn(x: tf.Tensor, data: Any) -> tf.Tensor:
        total = 0.0
        for _ in tf.range(3):
            for batch in data:
                total += tf.reduce_sum(batch) + x
        return total

    (found,) = sources(fn, tf.constant(1.0), data())
    assert found == ElementSource(1, (ir.FLOAT,), ((-1, WIDTH),), dataset=True)


def test_an_iterator_is_found_in_loops_and_branches() -> None:
    def counted(x: tf.Tensor, batches: Any) -> tf.Tensor:
        total = x
        for _ in tf.range(3):
            total += tf.reduce_sum(next(batches))
        return total

    def all_of(x: tf.Tensor, batches: Any) -> tf.Tensor:
        total = x
        for batch in batches:
            total += tf.reduce_sum(batch)
        return total

    want = ElementSource(1, (ir.FLOAT,), ((-1, WIDTH),), dataset=False)
    for fn in (counted, all_of):
        assert sources(fn, tf.constant(1.0), iter(data())) == (want,)


def test_nothing_is_looked_at_before_the_function_has_filled_what_it_takes_from() -> (
    None
):
    """Python or a queue that the pipeline reads; not what comes after an element."""
    queue = tf.queue.FIFOQueue(9, [tf.float32], [[]])
    state = tf.Variable(0.0)

    def python(x: Any) -> None:
        tf.py_function(lambda _: None, [x], [])

    @tf.function
    def called(x: Any) -> None:
        python(x)

    def told(x: Any) -> None:
        tf.print(x)
        tf.debugging.assert_less(x, 9.0)
        state.assign_add(x)

    def looped(before: Any, first: Any, after: Any, x: Any, batches: Any) -> tf.Tensor:
        before(x)
        total = x
        for _ in tf.range(3):
            first(x)
            total += tf.reduce_sum(next(batches))
            after(total)
        after(total)
        return total

    def looks(before: Any, first: Any, after: Any) -> bool:
        fn = functools.partial(looped, before, first, after)
        return bool(sources(fn, tf.constant(1.0), iter(data())))

    assert looks(told, told, told)
    for fills in (python, called, queue.enqueue):
        assert not looks(fills, told, told)
        assert not looks(told, fills, told)
        assert looks(told, told, fills)


def test_python_for_each_element_of_a_dataset_comes_after_the_first() -> None:
    def fn(data: Any) -> tf.Tensor:
        total = 0.0
        for batch in data:
            total += tf.reduce_sum(batch)
            tf.py_function(lambda _: None, [total], [])
        return total

    assert sources(fn, data())


def test_elements_of_one_size_tell_nothing() -> None:
    def fn(data: Any) -> tf.Tensor:
        total = 0.0
        for batch in data:
            total += tf.reduce_sum(batch)
        return total

    assert sources(fn, data(known=True)) == ()


def test_a_dataset_that_is_asked_for_more_than_elements_is_left_alone() -> None:
    def fn(data: Any) -> tf.Tensor:
        total = tf.cast(data.cardinality(), tf.float32)
        for batch in data:
            total += tf.reduce_sum(batch)
        return total

    assert sources(fn, data()) == ()


def test_a_dataset_made_inside_is_no_argument() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for batch in tf.data.Dataset.from_tensor_slices(x).batch(4):
            total += tf.reduce_sum(batch)
        return total

    assert sources(fn, tf.ones([6, WIDTH])) == ()
