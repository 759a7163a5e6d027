"""Inlining: precision crosses a plain call, and nothing else about the call changes."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.inline import inline
from amp.integration.runtime import definitions

ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}


def module_of(fn, *args):
    concrete = fn.get_concrete_function(*args)
    return definitions.read(context_lib.context(), concrete.name)


def node_of(name, op, inputs=(), device="", **updates):
    return ir.Node(name, op, inputs, (), device, None, updates)


def ops(module):
    return [node.op for node in module.main.nodes.values()]


@pytest.fixture
def weights():
    return tf.Variable(tf.random.normal([32, 32]) / 6.0)


def test_activations_cross_a_call_in_sixteen_bits(weights):
    layer = tf.function(lambda x: tf.nn.tanh(tf.matmul(x, weights)))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(layer(x))))
        return tape.gradient(loss, weights)

    @tf.function
    def flat(x):
        with tf.GradientTape() as tape:
            y = layer.python_function(layer.python_function(x))
            loss = tf.reduce_mean(tf.square(y))
        return tape.gradient(loss, weights)

    x = tf.random.normal([16, 32])
    with amp.mixed_precision_scope(**ALL):
        got = step(x)
        want = flat(x)
    nested, plain = amp.reports()
    assert nested.casts <= plain.casts + 1  # each call reads the variable anew
    np.testing.assert_array_equal(got, want)


def test_effects_happen_in_their_order_and_once(weights):
    log = tf.Variable(0.0)

    @tf.function
    def add_then_double(x):
        log.assign_add(tf.reduce_sum(x))
        log.assign(log * 2.0)
        return x + log

    @tf.function
    def fn(x):
        before = log.read_value()
        y = tf.matmul(x, weights)
        z = add_then_double(tf.ones([2]))
        return before, z, log.read_value(), add_then_double(z), log.read_value(), y

    x = tf.random.normal([16, 32])
    want = [t.numpy() for t in fn(x)]
    log.assign(0.0)
    with amp.mixed_precision_scope(**ALL):
        got = fn(x)
    assert "StatefulPartitionedCall" not in ops(inline(module_of(fn, x)))
    for a, b in zip(got[:-1], want[:-1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_argument_returned_as_it_is_passes_through():
    swap = tf.function(lambda a, b: (b, a))
    fn = tf.function(lambda a, b: swap(*swap(a, b)))
    module = module_of(fn, tf.constant(1.0), tf.constant(2.0))
    inlined = inline(module)
    assert [r.name for r in inlined.main.results] == [
        r.name for r in module.main.results
    ]
    sources = {r.edge[0] for r in inlined.main.results}
    assert sources <= inlined.main.nodes.keys() | {a.name for a in inlined.main.args}


def test_what_starts_a_compilation_or_is_kept_stays_a_call(weights):
    compiled = tf.function(lambda x: tf.matmul(x, weights), jit_compile=True)
    plain = tf.function(lambda x: tf.matmul(x, weights))

    @tf.function
    def fn(x):
        y = compiled(x)
        with amp.keep_float32():
            return plain(y)

    x = tf.ones([4, 32])
    calls = [
        op for op in ops(inline(module_of(fn, x))) if op.endswith("PartitionedCall")
    ]
    assert len(calls) == 2
    with amp.mixed_precision_scope(**ALL):
        fn(x)
    (report,) = amp.reports()
    low = [d.node for d in report.decisions if d.dtype == "bfloat16"]
    assert low
    assert all("::" in node for node in low)  # only inside the compiled function


def test_shapes_are_those_of_the_function_inlined(weights):
    inner = tf.function(lambda x: tf.matmul(x, weights))
    fn = tf.function(lambda x: inner(x))
    inlined = inline(module_of(fn, tf.TensorSpec([16, 32]))).main
    (product,) = [n.name for n in inlined.nodes.values() if n.op == "MatMul"]
    assert inlined.shape((product, 0)) == (16, 32)


def test_a_function_called_twice_is_copied_twice(weights):
    inner = tf.function(lambda x: tf.matmul(x, weights))
    fn = tf.function(lambda x: inner(inner(x)))
    assert ops(inline(module_of(fn, tf.ones([32, 32])))).count("MatMul") == 2


def test_what_is_colocated_stays_beside_its_like(weights):
    """A lookup in a table that is an argument of a function, as Keras' layers have."""
    table = tf.Variable(tf.random.normal([16, 32]))

    @tf.function
    def embed(ids):
        rows = tf.nn.embedding_lookup(table, ids)
        return tf.matmul(rows, weights)

    @tf.function
    def step(ids):
        return embed(ids)

    module = module_of(step, tf.constant([1, 2]))
    inlined = inline(module)
    assert "ResourceGather" in ops(inlined)
    (gather,) = [n for n in inlined.main.nodes.values() if n.op == "ResourceGather"]
    (text,) = gather.strings("_class")
    assert text.startswith("loc:@StatefulPartitionedCall/embedding_lookup")


def test_nodes_of_one_call_are_colocated_and_those_of_two_are_not():
    def beside(x):
        with tf.compat.v1.colocate_with(x.op):
            return tf.tanh(x)

    layer = tf.function(lambda x: beside(tf.nn.relu(x, name="relu")))
    module = module_of(tf.function(lambda x: layer(layer(x))), tf.ones([4, 4]))
    inlined = inline(module)
    groups = {
        node.name.rpartition("/")[0]: node.strings("_class")
        for node in inlined.main.nodes.values()
        if node.op == "Tanh"
    }
    assert len(groups) == 2
    for call, named in groups.items():
        assert named == (f"loc:@{call}/relu",)
        assert f"{call}/relu" in inlined.main.nodes


def tanhs(name: str, count: int) -> ir.Graph:
    """A function of so many arguments, each with a node that makes a result of it."""
    args = tuple(ir.Argument(f"a{i}", ir.FLOAT) for i in range(count))
    made = [node_of(f"n{i}", "Tanh", ((f"a{i}", 0),)) for i in range(count)]
    results = tuple(ir.Result(node.name, ir.FLOAT, (node.name, 0)) for node in made)
    return ir.Graph(name, {node.name: node for node in made}, args, results)


@pytest.mark.parametrize(("calls", "arguments"), [(1, 400), (400, 1)])
def test_time_is_linear(calls: int, arguments: int) -> None:
    """Ten times as many take ten times as long (30 allows for a busy machine)."""

    def seconds(calls: int, arguments: int) -> float:
        inputs = tuple((f"a{i}", 0) for i in range(arguments))
        made = [
            node_of(f"call{i}", "PartitionedCall", inputs, f=ir.Function("f"))
            for i in range(calls)
        ]
        nodes = {node.name: node for node in made}
        main = ir.Graph("main", nodes, tanhs("", arguments).args)
        module = ir.Module(main, {"f": tanhs("f", arguments)})
        taken = []
        for _ in range(3):
            start = time.process_time()
            inlined = inline(module)
            taken.append(time.process_time() - start)
        last = inlined.main.nodes[f"call{calls - 1}/n{arguments - 1}"]
        assert last.inputs == inputs[-1:]
        return min(taken)

    grown = [10 * n if n > 1 else n for n in (calls, arguments)]
    assert seconds(*grown) < 30 * seconds(calls, arguments)


@pytest.mark.parametrize(
    ("own", "calls", "made"),
    [
        ("", "/job:a/task:1/device:CPU:0", "/job:a/task:1/device:CPU:0"),
        ("/device:CPU:0", "", "/device:CPU:0"),
        ("/device:CPU:0", "/job:a/replica:0/task:1/device:GPU:1",
         "/job:a/replica:0/task:1/device:CPU:0"),
        ("/cpu:0", "/job:a/task:1", "/job:a/task:1/device:CPU:0"),
        ("/job:b/device:CPU:0", "/job:a/task:1", "/job:b/task:1/device:CPU:0"),
        ("/job:b/replica:0/task:0/device:GPU:0", "/job:a/task:1/device:CPU:0",
         "/job:b/replica:0/task:0/device:GPU:0"),
        ("a name of its own", "/job:a/task:1", "a name of its own"),
    ],
)  # fmt: skip
def test_a_node_takes_from_its_call_what_its_own_device_leaves_open(own, calls, made):
    """As where TensorFlow inlines: a worker's function keeps to that worker."""
    function = ir.Graph("f", {"n": node_of("n", "NoOp", device=own)})
    call = node_of("call", "PartitionedCall", device=calls, f=ir.Function("f"))
    module = ir.Module(ir.Graph("main", {"call": call}), {"f": function})
    found = inline(module).main.nodes["call/n"].device
    assert found == made
    if own.startswith("/") and calls:
        given, left = (tf.DeviceSpec.from_string(text) for text in (own, calls))
        assert found == left.make_merged_spec(given).to_string()
