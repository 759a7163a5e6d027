"""`loops`: invariants pass straight through, variables are read once, before."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, spec, traced, v1

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import loop_invariants
from amp.graph_rewrite.normalize.inline import inline

POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True)


def plain(fn: object, *specs: tf.TensorSpec) -> ir.Module:
    module, _ = traced(fn, *specs)
    return loop_invariants.hoist_invariants(inline(module))


def bodies(module: ir.Module) -> list[ir.Graph]:
    return [graph for name, graph in module.functions.items() if "while_body" in name]


def reads(graph: ir.Graph) -> list[ir.Node]:
    found = [node for node in graph.nodes.values() if node.op == "ReadVariableOp"]
    return [node for node in found if graph.readers.get((node.name, 0))]


class Weights(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(np.eye(4, dtype=np.float32) / 2)

    @tf.function
    def repeated(self, x: tf.Tensor, trips: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.tanh(tf.matmul(y, self.w))

        return tf.while_loop(lambda i, y: i < trips, body, [tf.constant(0), x])[1]

    @tf.function
    def trained(self, x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.matmul(y, self.w)
            self.w.assign_add(tf.ones([4, 4]))
            return i + 1, y

        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    @tf.function
    def nested(self, x: tf.Tensor) -> tf.Tensor:
        def inner(j: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return j + 1, tf.matmul(y, self.w)

        def outer(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            done = tf.while_loop(lambda j, y: j < 2, inner, [tf.constant(0), y])
            return i + 1, done[1]

        return tf.while_loop(lambda i, y: i < 2, outer, [tf.constant(0), x])[1]


@pytest.fixture
def weights() -> Weights:
    return Weights()


def test_a_variable_that_a_loop_only_reads_is_read_once_before_it(
    weights: Weights,
) -> None:
    module = plain(weights.repeated, spec(2, 4), spec(dtype=tf.int32))
    (body,) = bodies(module)
    assert not reads(body)
    (read,) = reads(module.main)
    assert [arg.type for arg in body.args].count(ir.FLOAT) == 2
    loop = next(node for node in module.main.nodes.values() if node.op == "While")
    assert (read.name, 0) in loop.inputs


def test_a_variable_that_a_loop_writes_is_read_on_every_trip(weights: Weights) -> None:
    module = plain(weights.trained, spec(2, 4))
    (body,) = bodies(module)
    assert reads(body)
    assert not reads(module.main)


def test_a_read_leaves_all_the_loops_it_is_in(weights: Weights) -> None:
    module = plain(weights.nested, spec(2, 4))
    assert len(bodies(module)) == 2
    assert not any(map(reads, bodies(module)))
    assert len(reads(module.main)) == 1


def test_the_read_stays_behind_what_the_loop_was_behind(weights: Weights) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        weights.w.assign(weights.w * 2.0)
        y = weights.repeated(x, tf.constant(2))
        weights.w.assign(weights.w * 3.0)
        return y

    # In powers of two and three every value is exact in bfloat16 but the tanh's.
    x = np.full([2, 4], 0.5, np.float32)
    want, before = step(x), weights.w.numpy()
    weights.w.assign(np.eye(4) / 2)
    got = amp.twin(step, x, policy=POLICY)(x)
    np.testing.assert_array_equal(weights.w.numpy(), before)
    # Two trips, each rounding operand, product and tanh, with factors of at most 1.
    np.testing.assert_allclose(got, want, atol=6 * 2.0**-8)


@pytest.mark.parametrize("inner", [False, True], ids=["main graph", "in a loop"])
def test_the_read_waits_for_what_the_loop_reads_in_a_graph_of_v1(inner: bool) -> None:
    """Nothing else puts a loop behind an update that it waits for by its data."""

    def updated(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([w.assign_add(tf.ones([4, 4]))]):
            start = tf.constant(0)
        body = lambda i, y: (i + 1, tf.matmul(y, w))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, [start, x])[1]

    def build() -> None:
        x = v1.placeholder(tf.float32, [2, 4], name="x")
        w = v1.get_variable("w", initializer=np.eye(4, dtype="f"), use_resource=True)
        if not inner:
            updated(w, x)
            return
        body = lambda i, y: (i + 1, updated(w, y))  # noqa: E731
        tf.while_loop(lambda i, y: i < 2, body, [tf.constant(0), x])

    module = loop_invariants.hoist_invariants(module_of(graph_def(build)))
    (graph,) = (g for g in module.graphs() if "AssignAddVariableOp" in g.ops)
    (read,) = (n for n in graph.nodes.values() if "/amp_read_" in n.name)
    waiting, before = [read.name], set()
    while waiting:
        node = graph.nodes.get(waiting.pop())
        if node is not None:
            before.add(node.op)
            waiting += [*(name for name, _ in node.inputs), *node.controls]
    assert "AssignAddVariableOp" in before
    assert len(graph.order) == len(graph.nodes), "there is a circle"


@pytest.mark.parametrize("name", ["trained", "nested"])
def test_values_stay_what_they_were(name: str) -> None:
    x = np.full([2, 4], 0.5, np.float32)
    first, second = Weights(), Weights()
    want = getattr(first, name)(x)
    got = amp.twin(getattr(second, name), x, policy=POLICY)(x)
    # Sums of powers of two: exact in bfloat16, whose products are added in float32.
    np.testing.assert_array_equal(got, want)


def test_a_loop_that_never_runs_gives_what_it_was_given(weights: Weights) -> None:
    x = np.full([2, 4], 0.5, np.float32)
    trips = tf.constant(0)
    got = amp.twin(weights.repeated, x, trips, policy=POLICY)(x, trips)
    np.testing.assert_array_equal(got, x)


def test_an_invariant_result_is_its_argument_and_is_read_where_it_comes_from() -> None:
    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        found = tf.while_loop(
            lambda i, y, w: i < 3,
            lambda i, y, w: (i + 1, tf.matmul(y, w), w),
            [tf.constant(0), x, w],
        )
        return found[1] + tf.matmul(x, found[2])

    module = plain(fn, spec(4, 4), spec(4, 4))
    (body,) = bodies(module)
    invariant = [body.args[index].type for index in loop_invariants.invariant(body)]
    assert invariant.count(ir.FLOAT) == 1
    products = [n for n in module.main.nodes.values() if n.op == "MatMul"]
    assert [("w", 0) in node.inputs for node in products] == [True]
