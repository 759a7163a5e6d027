"""`reads`: a variable is read once between writes, and never across one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import loop_invariants
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.rewrite import rewrite

POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
W = tf.Variable(np.eye(4, dtype=np.float32) * 2)


def used(fn: object, *specs: tf.TensorSpec) -> list[str]:
    """The reads of the main graph that anything reads."""
    return used_of(traced(fn, *specs)[0])


def used_of(module: ir.Module) -> list[str]:
    main = loop_invariants.hoist_invariants(inline(module)).main
    reads = [node.name for node in main.nodes.values() if node.op == "ReadVariableOp"]
    return [name for name in reads if main.readers.get((name, 0))]


def tied(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.matmul(x, W.read_value()), W.read_value(), transpose_b=True)


def written_between(x: tf.Tensor) -> tf.Tensor:
    y = tf.matmul(x, W.read_value())
    W.assign_add(tf.eye(4))
    return tf.matmul(y, W.read_value())


def trained(x: tf.Tensor) -> tf.Tensor:
    y = tied(x)
    W.assign_sub(tf.eye(4))
    return y


def test_tied_weights_are_read_and_cast_once() -> None:
    assert len(used(tied, spec(4, 4))) == 1
    made = rewrite(traced(tied, spec(4, 4))[0], settled()).graph.main
    casts = [node for node in made.nodes.values() if node.op == "Cast"]
    down = [node for node in casts if node.types("DstT") == (ir.BFLOAT16,)]
    assert len(down) == 2  # the weights, and x


def test_reads_before_a_write_are_one_and_reads_across_it_are_two() -> None:
    assert len(used(trained, spec(4, 4))) == 1
    assert len(used(written_between, spec(4, 4))) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_the_read_that_runs_in_any_case_is_the_one_that_is_left(number: int) -> None:
    """Or two would run, of which each may copy the variable."""
    module, _ = traced(trained, spec(4, 4))
    nodes = module.main.nodes.values()
    reads = [node.name for node in nodes if node.op == "ReadVariableOp"]
    main = dataclasses.replace(module.main, control_results=(reads[number],))
    assert used_of(ir.Module(main, module.functions)) == [reads[number]]


def test_a_loop_over_a_dataset_writes_what_it_is_given() -> None:
    """Its inputs are others than its function's arguments."""
    numbers = tf.data.Dataset.range(2)

    def epoch(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before = tf.matmul(x, tf.convert_to_tensor(W))
        for _ in numbers:
            W.assign_sub(tf.eye(4))
        return before, tf.matmul(x, tf.convert_to_tensor(W))

    assert len(used(epoch, spec(4, 4))) == 2
    x = tf.eye(4)
    W.assign(tf.eye(4) * 2)
    want = [y.numpy() for y in tf.function(epoch)(x)]
    W.assign(tf.eye(4) * 2)
    policy = {"emulate": True, "check": False, "trial": False, "strict": True}
    with amp.mixed_precision_scope(dtype="bfloat16", assignment="all", **policy):
        got = [y.numpy() for y in tf.function(epoch)(x)]
    W.assign(tf.eye(4) * 2)
    np.testing.assert_array_equal(got, want)


def test_a_loop_and_what_is_beside_it_share_one_read() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, tf.matmul(y, W))  # noqa: E731
        y = tf.while_loop(lambda i, y: i < 2, body, [tf.constant(0), x])[1]
        y = tf.matmul(y, W)
        W.assign_sub(tf.eye(4))
        return y

    assert len(used(fn, spec(4, 4))) == 1


def test_reads_on_several_devices_stay_several() -> None:
    """A packed handle stands for a variable on each of them, with values of its own."""

    def fn(x: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for place in ("/CPU:0", "/CPU:1", "/CPU:1"):
            with tf.device(place):
                found.append(tf.matmul(x, W.read_value()))
        return found

    assert len(used(fn, spec(4, 4))) == 2


def test_a_read_leaves_a_loop_for_the_device_that_it_was_on() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.device("/CPU:1"):
                return i + 1, tf.matmul(y, W.read_value())

        with tf.device("/CPU:0"):
            return tf.while_loop(lambda i, y: i < 2, body, [tf.constant(0), x])[1]

    main = loop_invariants.hoist_invariants(inline(traced(fn, spec(4, 4))[0])).main
    (read,) = [n for n in main.nodes.values() if n.op == "ReadVariableOp"]
    assert read.device.endswith("CPU:1")


def test_values_stay_what_they_were() -> None:
    """In powers of two and small whole numbers every product is exact in bfloat16."""
    x = np.eye(4, dtype=np.float32)
    for fn in (tied, written_between, trained):
        W.assign(np.eye(4) * 2)
        want, after = tf.function(fn)(x), W.numpy()
        W.assign(np.eye(4) * 2)
        got = amp.twin(fn, x, policy=POLICY)(x)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(W.numpy(), after)
