"""Python may write any variable: no read is moved or merged past what runs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import spec, traced

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import loop_invariants, python_calls
from amp.graph_rewrite.normalize.inline import inline

POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True, emulate=True)
W = tf.Variable(np.eye(4, dtype=np.float32))
Run = Callable[[], tf.Tensor]


def doubled() -> np.int32:
    W.assign(2 * W)
    return np.int32(0)


def by_py_function() -> tf.Tensor:
    return tf.py_function(doubled, [], tf.int32)


def by_numpy_function() -> tf.Tensor:
    return tf.numpy_function(doubled, [], tf.int32)


def by_a_branch() -> tf.Tensor:
    yes = tf.random.uniform([]) < 2.0
    return tf.cond(yes, by_py_function, lambda: tf.constant(0))


def across(x: tf.Tensor, run: Run) -> tf.Tensor:
    """Reads, Python, and a read that waits for it."""
    first = tf.matmul(x, W)
    with tf.control_dependencies([first]):
        ran = run()
    with tf.control_dependencies([ran]):
        return first, tf.matmul(x, W.read_value())


def before_it_alone(x: tf.Tensor, run: Run) -> tf.Tensor:
    """A read that Python waits for, beside one that may come whenever it likes."""
    kept = W.read_value()
    with tf.control_dependencies([kept]):
        ran = run()
    with tf.control_dependencies([ran]):
        return tf.matmul(x, kept), tf.matmul(x, W.read_value())


def in_a_loop(x: tf.Tensor, run: Run) -> tf.Tensor:
    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([total]):
            ran = run()
        with tf.control_dependencies([ran]):
            return i + 1, tf.matmul(total, W.read_value())

    return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1:]


WAYS = [across, before_it_alone, in_a_loop]


@pytest.mark.parametrize("run", [by_py_function, by_numpy_function, by_a_branch])
@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_of_the_order_asked_for(way: Callable, run: Run) -> None:
    """All values are powers of two, and exact in bfloat16."""
    x, fn = tf.eye(4), lambda y: way(y, run)
    W.assign(tf.eye(4))
    want, after = tf.function(fn)(x), W.numpy()
    W.assign(tf.eye(4))
    twin = amp.twin(fn, x, policy=POLICY)
    for got, wanted in zip(twin(x), want, strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(W.numpy(), after)


def used(fn: Callable, *specs: tf.TensorSpec) -> list[str]:
    """The reads of the main graph that anything reads."""
    module, _ = traced(fn, *specs)
    main = loop_invariants.hoist_invariants(inline(module)).main
    reads = [node.name for node in main.nodes.values() if node.op == "ReadVariableOp"]
    return [name for name in reads if main.readers.get((name, 0))]


def test_reads_on_the_same_side_of_python_are_one() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(tf.matmul(x, W), W)
        with tf.control_dependencies([y]):
            ran = by_py_function()
        with tf.control_dependencies([ran]):
            later = W.read_value(), W.read_value()
        return tf.matmul(tf.matmul(y, later[0]), later[1])

    assert len(used(fn, spec(4, 4))) == 2


def test_python_that_nothing_orders_merges_as_if_it_were_not_there() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        by_py_function()
        return tf.matmul(tf.matmul(x, W), W)

    assert len(used(fn, spec(4, 4))) == 1


def test_functions_that_call_what_runs_python_run_it() -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x + tf.cast(by_py_function(), tf.float32)

    def fn(x: tf.Tensor) -> tf.Tensor:
        yes = tf.reduce_sum(x) > 0
        return tf.cond(yes, lambda: inner(x), lambda: tf.tanh(x))

    module, _ = traced(fn, spec(4, 4))
    running = python_calls.running(module)
    assert any("inner" in name for name in running)
    assert any("cond_true" in name for name in running)
    assert not any("cond_false" in name for name in running)
    assert len(python_calls.nodes(module.main, running)) == 1
    assert python_calls.nodes(module.main, frozenset()) == []


def test_before_and_after_are_sets_of_what_is_ordered() -> None:
    def node(name: str, *inputs: str, controls: tuple[str, ...] = ()) -> ir.Node:
        edges = tuple((source, 0) for source in inputs)
        return ir.Node(name, "Identity", edges, controls, "", None, {})

    every = [node("a"), node("p", "a"), node("b", controls=("p",)), node("q", "b")]
    graph = ir.Graph(
        name="", args=(), results=(), nodes={n.name: n for n in [*every, node("c")]}
    )
    found = python_calls.around(graph, ["p", "q"], "abc")
    assert found == {"a": (0, 3), "b": (1, 2), "c": (0, 0)}
