"""`sizes`: what the trace leaves unknown has the sizes of the call, for costs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, settled, spec, v1
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.graph import calls, ir, shapes
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.row_reads import read_rows
from amp.graph_rewrite.normalize.size_questions import RefusedError
from amp.graph_rewrite.normalize.sizes import SizesAtCall, sized
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.runtime import definitions, shape_inference

WIDTH = 32


@pytest.fixture
def read() -> Callable[..., ir.Module]:
    """Traces a function, keeps its graph, and reads it with the shapes of its trace."""
    kept: list[Any] = []

    def module(fn: Any, *specs: Any) -> ir.Module:
        concrete = tf.function(fn).get_concrete_function(*specs)
        kept.append(concrete)
        definitions.remember(concrete.name.decode(), concrete.graph)
        return inline(definitions.read(context_lib.context(), concrete.name))

    return module


def at(*args: ir.Shape, **tensors: ir.Shape) -> SizesAtCall:
    """A call with arguments of these shapes, and tensors of these at output 0."""
    edges = {(name, 0): shape for name, shape in tensors.items()}
    return SizesAtCall(shape_inference.infer, args, edges)


def sizes_of(module: ir.Module, call: SizesAtCall) -> dict[ir.Edge, ir.Shape]:
    main = sized(module, call).module.main
    return {edge: main.size(edge) for edge in main.readers}


def attention(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Products, reshapes, broadcasts and their gradients."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        count, length = tf.unstack(tf.shape(x)[:2])
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.reshape((x - mean) * tf.math.rsqrt(variance + 1e-3), [-1, WIDTH])
        y = tf.reshape(tf.matmul(y, w), [count, length, 4, WIDTH // 4])
        y = tf.transpose(y, [0, 2, 1, 3])
        y = tf.matmul(tf.nn.softmax(tf.matmul(y, y, transpose_b=True)), y)
        y = tf.reshape(tf.transpose(y, [0, 2, 1, 3]), tf.shape(x)) + x
        loss = tf.reduce_mean(tf.square(y))
    return tape.gradient(loss, w)


def test_sizes_are_the_shapes_of_a_trace_at_this_size(read: Any) -> None:
    weights = spec(WIDTH, WIDTH)
    unknown = read(attention, spec(None, None, WIDTH), weights)
    found = sizes_of(unknown, at((6, 10, WIDTH), (WIDTH, WIDTH)))
    static = read(attention, spec(6, 10, WIDTH), weights).main
    forward = {e for e in static.readers if "gradient" not in e[0]} & found.keys()
    assert len(forward) > 30
    assert {e: found[e] for e in forward} == {e: static.shape(e) for e in forward}
    products = ("MatMul", "BatchMatMulV2")
    for name, node in static.nodes.items():  # gradients of broadcasts are other nodes
        if node.op in products:
            assert found[name, 0] == static.shape((name, 0))
    assert all(map(shapes.whole, found.values()))


def test_what_decides_results_is_known_no_better(read: Any) -> None:
    module = read(attention, spec(None, None, WIDTH), spec(WIDTH, WIDTH))
    made = sized(module, at((6, 10, WIDTH), (WIDTH, WIDTH)))
    main = made.module.main
    assert {e: main.shape(e) for e in main.readers} == {
        e: module.main.shape(e) for e in main.readers
    }
    assert made.given == {"x": (6, 10, WIDTH)}
    assert not made.assumed


def test_a_graph_without_unknown_dimensions_is_not_touched(read: Any) -> None:
    def never(nodes: Any) -> Any:
        raise AssertionError("nothing is to be inferred")

    module = read(attention, spec(6, 10, WIDTH), spec(WIDTH, WIDTH))
    made = sized(module, SizesAtCall(never, ((6, 10, WIDTH), (WIDTH, WIDTH))))
    assert made.module.main is module.main
    assert not made.given


def test_functions_get_the_sizes_of_the_call_that_they_are_called_with(
    read: Any,
) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            wide = tf.reshape(tf.concat([y, y], 1), [-1, WIDTH])
            return i + 1, tf.cond(
                i > 1, lambda: tf.matmul(y, y, transpose_b=True) @ y, lambda: wide[::2]
            )

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    made = sized(read(loop, spec(None, WIDTH)), at((6, WIDTH)))
    graphs = list(made.module.graphs())
    assert made.module.functions
    for graph in graphs:
        for result in graph.results:
            assert shapes.whole(graph.size(result.edge)), graph.name
    (product,) = {
        graph.size((node.name, 0))
        for graph in graphs
        for node in graph.nodes.values()
        if node.op == "MatMul" and node.flag("transpose_b")
    }
    assert product == (6, 6)


def test_a_function_called_as_it_is_gets_sizes_too(read: Any) -> None:
    inner = tf.function(
        lambda x: tf.reshape(x, [-1, WIDTH]) * 2.0,
        input_signature=[spec(None, None, WIDTH)],
        jit_compile=True,
    )
    module = read(lambda x: inner(x) + 1.0, spec(None, None, WIDTH))
    made = sized(module, at((3, 5, WIDTH)))
    (name,) = (n.name for n in made.module.main.nodes.values() if n.op in calls.CALLS)
    assert made.module.main.size((name, 0)) == (15, WIDTH)


def chosen(x: tf.Tensor) -> tf.Tensor:
    where = tf.where(x[:, 0] > 0.0)
    return tf.matmul(tf.gather_nd(x, where), tf.ones([WIDTH, WIDTH]))


def test_what_follows_from_nothing_is_assumed_and_said(read: Any) -> None:
    made = sized(read(chosen, spec(None, WIDTH)), at((6, WIDTH)))
    assert made.assumed == (("Where", 0),)
    main = made.module.main
    assert main.size(("MatMul", 0)) == (6, WIDTH)  # no longer than the first argument


def test_what_a_call_tells_is_not_assumed(read: Any) -> None:
    module = read(chosen, spec(None, WIDTH))
    made = sized(module, at((6, WIDTH), Where=(2, 1)))
    assert made.assumed == ()
    assert made.given == {"x": (6, WIDTH), "Where": (2, 1)}
    assert made.module.main.size(("MatMul", 0)) == (2, WIDTH)


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((None, 10, WIDTH), False), ((None, None, WIDTH), True), (None, True)],
)
def test_what_differs_in_more_than_its_batch_has_lengths(
    read: Any, shape: tuple[int | None, ...] | None, lengths: bool
) -> None:
    module = read(tf.tanh, tf.TensorSpec(shape, tf.float32))
    assert sized(module, at((6, 10, WIDTH))).lengths is lengths


def test_without_a_call_reshapes_still_keep_their_elements(read: Any) -> None:
    def flat(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.reshape(x, [-1, WIDTH]), tf.ones([WIDTH, 8]))

    made = sized(read(flat, spec(None, None, WIDTH)), at())
    assert made.assumed == (("x", 0),)
    unknown = shapes.UNKNOWN_DIMENSION
    assert made.module.main.size(("MatMul", 0)) == (unknown * unknown, 8)


def test_what_inference_refuses_leaves_the_rest_known(read: Any) -> None:
    def apart(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, tf.ones([8, 8])) + tf.reshape(y, [-1, 8])

    module = read(apart, spec(None, 8), spec(None))
    main = sized(module, at((4, 8), (56,))).module.main  # 4 rows and 7
    assert main.size(("MatMul", 0)) == (4, 8)
    assert main.size(("Reshape", 0)) == (7, 8)


def test_inference_that_fails_leaves_the_module_as_it_was(read: Any) -> None:
    def broken(nodes: Any) -> Any:
        raise RefusedError("")

    module = read(attention, spec(None, None, WIDTH), spec(WIDTH, WIDTH))
    main = sized(module, SizesAtCall(broken, ((6, 10, WIDTH),))).module.main
    for edge in main.readers:
        if edge != ("x", 0):
            assert main.size(edge) == module.main.shape(edge)


def test_placeholders_of_a_graph_are_told_by_name() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [None, None, WIDTH], name="x")
        tf.identity(tf.reshape(x, [-1, WIDTH]), name="out")

    module = module_of(graph_def(build))
    assert sizes_of(module, at(x=(3, 5, WIDTH)))["Reshape", 0] == (15, WIDTH)


def normalized(x: tf.Tensor, filters: Any, weights: Any) -> tf.Tensor:
    """A step whose product reads what [None, None, 1024] is reshaped to."""
    with tf.GradientTape() as tape:
        y = tf.reshape(tf.nn.conv1d(x, filters, 1, "SAME"), [-1, 1024])
        y = tf.matmul(y, weights)
        mean, variance = tf.nn.moments(y, [-1], keepdims=True)
        y = (y - mean) * tf.math.rsqrt(variance + 1e-3)
        loss = tf.reduce_mean(tf.square(y))
    variables = [filters, weights]
    for variable, gradient in zip(
        variables, tape.gradient(loss, variables), strict=True
    ):
        variable.assign_sub(gradient)
    return loss


@pytest.mark.parametrize("call", [None, at(), at((8, 64, WIDTH))])
def test_a_second_rewrite_sees_what_the_first_saw(read: Any, call: Any) -> None:
    """The rewrite checks that itself, and raises a VerifyError."""
    filters = tf.Variable(tf.zeros([3, WIDTH, 1024]))
    weights = tf.Variable(tf.zeros([1024, 64]))
    step = lambda x: normalized(x, filters, weights)  # noqa: E731
    policy = settled(shipped_devices.REFERENCE, assignment="cost")
    rewrite(read(step, spec(None, None, WIDTH)), policy, sizes=call)


def test_what_a_session_fetches_has_a_size_though_no_node_reads_it() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [None, WIDTH], name="x")
        tf.matmul(x, tf.ones([WIDTH, 8]), name="out")

    module = module_of(graph_def(build))
    main = sized(module, at(x=(4, WIDTH))).module.main
    assert main.size(("out", 0)) == (4, 8)


TABLE = tf.Variable(tf.zeros([50, 4, WIDTH]))


def rows(ids: tf.Tensor) -> tf.Tensor:
    return tf.nn.embedding_lookup(TABLE, ids)


def entries(ids: tf.Tensor) -> tf.Tensor:
    return tf.gather_nd(TABLE, ids)


def rows_of_a_table_of_which_rows_are_written(ids: tf.Tensor) -> tf.Tensor:
    found = tf.gather(tf.convert_to_tensor(TABLE), ids)
    new = tf.zeros([10, 4, WIDTH])
    TABLE.scatter_sub(tf.IndexedSlices(new, tf.zeros([10], tf.int32)))
    return found


@pytest.mark.parametrize(
    ("fn", "last", "size"),
    [
        (rows, None, (6, 10, 4, WIDTH)),
        (entries, 1, (6, 4, WIDTH)),
        (entries, 2, (6, WIDTH)),
        (rows_of_a_table_of_which_rows_are_written, None, (6, 10, 4, WIDTH)),
    ],
)
def test_a_lookup_in_a_variable_has_as_many_rows_as_indices(
    read: Any, fn: Any, last: int | None, size: tuple[int, ...]
) -> None:
    """Its handle says nothing of the variable's shape."""

    def step(ids: tf.Tensor) -> tf.Tensor:
        return tf.tanh(fn(ids))

    ids = (6, 10 if last is None else last)
    module = read_rows(read(step, spec(None, last, dtype=tf.int32)), False)
    made = sized(module, at(ids))
    (tanh,) = (name for name, n in made.module.main.nodes.items() if n.op == "Tanh")
    assert made.module.main.size((tanh, 0)) == size
    assert not made.assumed
