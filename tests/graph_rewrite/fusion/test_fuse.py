"""Clusters compute what their nodes do, where they pay, and hide nothing."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import warnings

import numpy as np
import pytest
import random_graphs
import rewriting
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewriting import CPU, GraphDef, graph_def, nodes, run, v1

import amp
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.candidates import context, sources
from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.graph import ir, serde, unscale_markers
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import op_table
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS

pytestmark = pytest.mark.kernels

# Starting a cluster and arithmetic in it cost nothing, so that small ones pay.
FREE = dataclasses.replace(
    CPU,
    compiled=dataclasses.replace(
        shipped_devices.CPU_AMX, call=0.0, launch=0.0, bandwidth=1e30, slowdown={}
    ),
)
NEVER = dataclasses.replace(
    CPU, compiled=dataclasses.replace(shipped_devices.CPU_AMX, call=math.inf)
)
ROWS, WIDTH = 8, 4
MAIN = FunctionUse("", False)
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.fixture(autouse=True)
def compiling_costs_nothing(monkeypatch):
    monkeypatch.setattr(fuse, "COMPILE_SECONDS", 0.0)


def gelu(y):
    return 0.5 * y * (1.0 + tf.math.erf(y * 0.5**0.5))


def between_products(activation=gelu, layers: int = 1) -> None:
    """x by the identity, `activation` in float32 (scopes "act"), by the identity."""
    y = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    eye = tf.constant(np.eye(WIDTH, dtype=np.float32), name="eye")
    for i in range(layers):
        y = tf.matmul(y, eye, name=f"p{i}")
        with tf.name_scope(f"act{i}"):
            y = activation(y)
    tf.identity(tf.matmul(y, eye, name="last"), name="out")


def rewrite(proto: GraphDef, on: Device = FREE, **fields) -> GraphDef:
    fields = {"keep": ("act*",)} | fields
    return rewriting.rewritten(proto, on, **fields).graph


def calls(proto) -> list:
    """The calls of clusters in a graph or function."""
    found = proto.node if isinstance(proto, GraphDef) else proto.node_def
    return [node for node in found if ir.CLUSTER in node.attr]


def fusion_of(proto: GraphDef, on: Device = FREE, **fields) -> fuse.Fusion:
    found = []
    was = fuse.fuse

    def spy(*args):
        found.append(was(*args).fusion)
        return was(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "fuse", spy)
        rewrite(proto, on, **fields)
    (fusion,) = found
    return fusion


# Values


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_cluster_rounds_once_what_kernels_round_once(dtype):
    """Float32 between the casts: one rounding, and float32's own errors.

    Operands are exact in both types, and products by the identity are exact. GELU in
    float32 is within a few units of 2 * |x|, which 64 units cover.
    """
    x = np.linspace(-4, 3.75, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    assert not np.any(x * 4 % 1)
    proto = rewrite(graph_def(between_products), dtype=dtype)
    assert len(calls(proto)) == 1
    (out,) = run(proto, ["out"], {"x": x})
    wide = x.astype(np.float64)
    exact = wide * 0.5 * (1 + np.vectorize(math.erf)(wide * math.sqrt(0.5)))
    bound = UNIT[dtype] * np.abs(exact) + 64 * 2.0**-24 * 2 * np.abs(wide)
    assert (np.abs(out - exact) <= bound).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_come_out_as_from_kernels(value):
    x = np.full([ROWS, WIDTH], value, np.float32)
    x[1:] = 1.0
    proto = graph_def(lambda: between_products(lambda y: tf.nn.relu(y * 2.0) - y))
    names = ["act0/sub"]
    (old,) = run(rewrite(proto, NEVER), names, {"x": x})
    (new,) = run(rewrite(proto), ["out"], {"x": x})
    assert np.isfinite(new[1:]).all()
    assert not np.isfinite(new[0]).any()
    assert not np.isfinite(old[0]).any()


def test_backward_pass_too():
    """A gradient's nodes wait for each other; clusters take that over."""

    def build():
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
        eye = tf.constant(np.eye(WIDTH, dtype=np.float32) / 2)
        with tf.name_scope("act"):
            y = gelu(tf.matmul(x, eye, name="product"))
        y = tf.matmul(y, eye)
        with tf.name_scope("act_grad"):
            grads = tf.gradients(tf.square(y), x)
        tf.identity(grads[0], name="out")

    proto = graph_def(build)
    x = np.linspace(-2, 2, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    keep = ("act/[!p]*", "act_grad/act/[!p]*")
    fused = rewrite(proto, keep=keep)
    assert len(calls(fused)) == 3  # of GELU, of the loss and of its gradient
    (new,) = run(fused, ["out"], {"x": x})
    (old,) = run(rewrite(proto, NEVER, keep=keep), ["out"], {"x": x})
    # The same roundings at the same places, each of which may fall to the other side.
    np.testing.assert_allclose(new, old, atol=2 * UNIT["bfloat16"])


def test_a_reshape_to_a_shape_that_the_step_computes_is_in_the_cluster():
    """XLA is told the values when it compiles."""

    def reshaped():
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
        eye = tf.constant(np.eye(WIDTH, dtype=np.float32))
        shape = tf.raw_ops.Shape(input=x, name="shape")
        y = tf.matmul(x, eye, name="product")
        with tf.name_scope("act"):
            y = gelu(tf.reshape(gelu(y), shape))
        tf.identity(tf.matmul(y, eye), name="out")

    proto = graph_def(reshaped)
    fused = rewrite(proto)
    (call,) = calls(fused)
    assert "shape" in call.input
    x = np.linspace(-2, 2, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    (new,) = run(fused, ["out"], {"x": x})
    (old,) = run(rewrite(proto, NEVER), ["out"], {"x": x})
    # The same roundings at the same places, each of which may fall to the other side.
    np.testing.assert_allclose(new, old, atol=2 * UNIT["bfloat16"])


# What is made


def test_each_step_is_counted():
    fusion = fusion_of(graph_def(between_products))
    assert (fusion.clusters, fusion.functions) == (1, 1)
    # Five nodes of GELU, their three constants, one cast up and one down.
    assert fusion.nodes == 10
    # Left: x down, and what is returned up.
    assert (fusion.casts_before, fusion.casts_after) == (4, 2)
    assert fusion.seconds > 0


def test_layers_that_are_alike_share_one_function():
    fusion = fusion_of(graph_def(lambda: between_products(layers=3)))
    assert (fusion.clusters, fusion.functions) == (3, 1)


def made_in_clusters(made: list) -> set[str]:
    """The nodes whose results calls of clusters replace."""
    texts = [call.attr[ir.CLUSTER].s.decode() for call in made]
    return {edge.rpartition(":")[0] for text in texts for edge in text.split(",")}


def read_by(made: list) -> set[str]:
    return {edge.lstrip("^").partition(":")[0] for call in made for edge in call.input}


def test_a_cluster_reads_what_another_one_gives():
    """Else the nodes of the first would run as kernels, beside its call."""

    def residual() -> None:
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
        eye = tf.constant(np.eye(WIDTH, dtype=np.float32))
        with tf.name_scope("act0"):
            a = gelu(tf.matmul(x, eye, name="product"))
        b = tf.matmul(a, eye)
        with tf.name_scope("act1"), tf.control_dependencies([a]):
            b = gelu(b + a)
        tf.identity(tf.matmul(b, eye), name="out")

    proto = graph_def(residual)
    keep = ("act0/[!p]*", "act1/*")
    made = calls(rewrite(proto, keep=keep))
    assert len(made) == 2
    assert read_by(made).isdisjoint(made_in_clusters(made))
    x = np.linspace(-2, 2, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    (new,) = run(rewrite(proto, keep=keep), ["out"], {"x": x})
    (old,) = run(rewrite(proto, NEVER, keep=keep), ["out"], {"x": x})
    # The same roundings at the same places, each of which may fall to the other side.
    np.testing.assert_allclose(new, old, atol=4 * UNIT["bfloat16"])


def test_every_node_stays_and_can_be_fetched():
    original = graph_def(between_products)
    proto = rewrite(original)
    assert nodes(original).keys() <= nodes(proto).keys()
    x = np.ones([ROWS, WIDTH], np.float32)
    inner = [name for name in nodes(original) if name.startswith("act0/")]
    for old, new in zip(
        run(original, inner, {"x": x}), run(proto, inner, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(new, old, rtol=UNIT["bfloat16"])


def test_a_second_rewrite_changes_nothing():
    once = rewrite(graph_def(between_products))
    again = rewriting.rewritten(once, FREE, keep=("act*",), fetches=["out"])
    assert again.graph == once
    assert again.report.verdict == "nothing more to convert"


def test_a_later_rewrite_sees_the_nodes_in_a_cluster():
    """What was kept in float32 may be converted then."""
    once = rewrite(graph_def(between_products))
    again = rewriting.rewritten(once, FREE, fetches=["out"])
    assert rewriting.low(again.report) >= {"act0/Erf", "act0/add", "act0/mul"}
    x = np.ones([ROWS, WIDTH], np.float32)
    (old,), (new,) = (run(proto, ["out"], {"x": x}) for proto in (once, again.graph))
    # Each of five nodes rounds by itself now, and none is larger than 2.
    np.testing.assert_allclose(new, old, atol=5 * 2 * UNIT["bfloat16"])


def test_static_shapes_go_through_a_call():
    proto = rewrite(graph_def(between_products))
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(proto, name="")
    (call,) = calls(proto)
    assert graph.get_tensor_by_name(f"{call.name}:0").shape == [ROWS, WIDTH]


# Where there is none


@pytest.mark.parametrize(
    "fields", [{"on": NEVER}, {"emulate": True}, {"keep": ()}], ids=str
)
def test_no_cluster(fields):
    """Where a call has no price, in emulation, and where there is no cast to save."""
    assert not calls(rewrite(graph_def(between_products), **fields))


def test_no_cluster_on_shipped_figures_of_a_gpu():
    assert not calls(rewrite(graph_def(between_products), shipped_devices.A100))


def test_no_cluster_where_it_is_compiled_already():
    function = tf.function(lambda x: gelu(x @ tf.eye(4)) @ tf.eye(4), jit_compile=True)
    module, _ = rewriting.traced(function, rewriting.spec(8, 4))
    settled = rewriting.settled(FREE, keep=("mul*", "Erf", "add*"))
    made = rewrite_lib.rewrite(module, settled)
    assert made.graph.main is not module.main
    assert not any(node.has(ir.CLUSTER) for node in made.graph.main.nodes.values())


def test_no_cluster_among_frames():
    def build():
        between_products()
        switched = tf.raw_ops.Switch(data=v1.placeholder(tf.int32, []), pred=True)
        tf.raw_ops.Merge(inputs=list(switched))

    assert not calls(rewrite(graph_def(build)))


def test_only_what_is_clearly_faster():
    """The start of the call decides: cheap enough, and it is made."""
    proto = graph_def(between_products)
    saved = fusion_of(proto).seconds
    for call, made in ((saved / 2, 1), (saved * 0.95, 0), (saved * 2, 0)):
        compiled = dataclasses.replace(FREE.compiled, call=call)
        on = dataclasses.replace(FREE, compiled=compiled)
        assert fusion_of(proto, on).clusters == made


def test_only_what_wins_back_its_compilation(monkeypatch):
    """Layers that are alike win it back together."""
    one, three = (graph_def(lambda n=n: between_products(layers=n)) for n in (1, 3))
    monkeypatch.setattr(
        fuse, "COMPILE_SECONDS", 2 * fuse.STEPS * fusion_of(one).seconds
    )
    assert fusion_of(one).clusters == 0
    assert fusion_of(three).clusters == 3


@pytest.mark.parametrize("fixed", [(False, True), (True, False)])
def test_what_has_no_fixed_sizes_somewhere_is_compiled_for_each(monkeypatch, fixed):
    """Alike clusters share one function, whichever of them is met first."""
    monkeypatch.setattr(fuse, "COMPILE_SECONDS", fuse.STEPS)  # saving 1 s a step pays

    def names(seconds: float) -> dict:
        alike = [types.SimpleNamespace(key="key", fixed=each) for each in fixed]
        found = {MAIN: [fuse._Cluster(each, seconds / 2) for each in alike]}
        module = ir.Module(ir.Graph("", {}), {})
        return fuse._named(found, {MAIN: 1.0}, module, "")

    assert names(0.9 * fuse.SIZES) == {}
    assert names(1.1 * fuse.SIZES) == {"key": "amp_cluster_1"}


# Random graphs

STEPS = st.tuples(st.integers(0, 13), st.integers(0, 9), st.integers(0, 9))


@given(
    st.lists(STEPS, min_size=3, max_size=9), st.sampled_from(["bfloat16", "float16"])
)
@settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_laws_hold_with_clusters(program, dtype):
    """Values are within the bound that holds without; a second rewrite is the first."""
    with tf.Graph().as_default() as graph:
        bounds = random_graphs.build(program, UNIT[dtype])
    proto = graph.as_graph_def()
    fields = {"dtype": dtype, "deny": ("Tanh", "Mul", "AddV2", "Sigmoid")}
    twin = rewriting.rewritten(proto, FREE, fetches=["end"], **fields)
    assert nodes(proto).keys() <= nodes(twin.graph).keys()
    made = calls(twin.graph)
    assert read_by(made).isdisjoint(made_in_clusters(made))
    again = rewriting.rewritten(twin.graph, FREE, fetches=["end"], **fields)
    assert again.graph == twin.graph
    size = (2, random_graphs.N, random_graphs.N)
    x, y = np.random.default_rng(0).uniform(-0.25, 0.25, size).astype(np.float32)
    feeds = {"x": x, "y": y, "flag": True}
    (want,), (got,) = (run(g, ["end"], feeds) for g in (proto, twin.graph))
    assert np.abs(got.astype(np.float64) - want).max() <= bounds.error


# Unscaling


def test_the_unscale_multiply_takes_its_cast_along_and_stays_marked():
    def build():
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
        grad = tf.matmul(x, tf.constant(np.eye(WIDTH, dtype=np.float32)), name="p")
        unscaled = tf.multiply(grad, 2.0**-10, name="unscale")
        unscaled.op._set_attr(ir.UNSCALE, v1.AttrValue(b=True))
        tf.subtract(x, unscaled, name="update")

    proto = rewrite(graph_def(build))
    (call,) = calls(proto)
    assert call.attr["Tin"].list.type == [tf.bfloat16.as_datatype_enum]
    assert list(call.attr["Tout"].list.type) == [1]
    behind = unscale_markers.behind_markers(serde.read_graph(proto))[""]
    assert behind >= {"unscale", "update"}
    x = np.full([ROWS, WIDTH], 2.0, np.float32)
    (out,) = run(proto, ["update"], {"x": x})
    np.testing.assert_array_equal(out, x - x * 2.0**-10)


# Functions


WITH = {"dtype": "bfloat16", "assignment": "all", "keep": ("*act/*",)}


@pytest.fixture
def on_free(monkeypatch):
    """The adapter plans for `FREE`; gives what was fused."""
    monkeypatch.setattr(hardware, "device", lambda: FREE)
    monkeypatch.setattr(PROCESS, "settled", {})
    found = []
    was = fuse.fuse

    def spy(*args):
        found.append(was(*args).fusion)
        return was(*args)

    monkeypatch.setattr(fuse, "fuse", spy)
    return found


def layer(x, activation=gelu):
    y = x @ tf.eye(WIDTH)
    with tf.name_scope("act"):
        y = activation(y)
    return y @ tf.eye(WIDTH)


def some() -> tf.Tensor:
    values = np.linspace(-2, 2, ROWS * WIDTH, dtype=np.float32)
    return tf.constant(values.reshape(ROWS, WIDTH))


def close(got, want) -> None:
    """Three roundings: the product's operand, its result, the cluster's result."""
    bound = 3 * UNIT["bfloat16"] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def test_a_function_runs_its_clusters_also_in_a_loop(on_free):
    def loop(x):
        for _ in tf.range(2):
            x = layer(x)
        return x

    for fn, weight in ((layer, 1), (loop, 10)):
        on_free.clear()
        function = tf.function(fn)
        with amp.mixed_precision_scope(strict=True, **WITH):
            got = function(some())
        close(got, function(some()) if weight == 1 else layer(layer(some())))
        assert sum(fusion.clusters for fusion in on_free) == 1


def test_what_may_still_be_differentiated_has_no_clusters(on_free):
    """A call has no gradient: twins given to a user, and graphs that are no step."""
    twin = amp.twin(layer, rewriting.spec(ROWS, WIDTH), policy=amp.Policy(**WITH))
    assert not calls(twin.function_def)
    original = graph_def(between_products)
    policy = amp.Policy(**{**WITH, "keep": ("act*",)})
    assert not calls(amp.rewrite(original, policy).graph)


def test_a_graph_that_updates_variables_has_clusters(on_free):
    """A step of training, run by a session."""

    def build():
        between_products()
        count = v1.get_variable("count", shape=[], use_resource=True)
        count.assign_add(1.0)

    policy = amp.Policy(**{**WITH, "keep": ("act*",)})
    assert len(calls(amp.rewrite(graph_def(build), policy).graph)) == 1


def test_what_xla_cannot_compile_gives_way_to_the_original(on_free, monkeypatch):
    """Should the table be wrong for another TensorFlow, the job goes on."""
    row = dataclasses.replace(op_table.facts("InvGrad"), fusible=True)
    table = {**op_table.TABLE, "InvGrad": row}
    monkeypatch.setattr(context, "TABLE", table)
    function = tf.function(
        lambda x: layer(x, lambda y: tf.raw_ops.InvGrad(y=y, dy=y) * 2.0)
    )
    want = function(some())
    with amp.mixed_precision_scope(**WITH):
        with pytest.warns(RuntimeWarning, match="unsupported operations"):
            got = function(some())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(function(some()), got)
    assert sum(fusion.clusters for fusion in on_free) == 1
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("through", [False, True])
def test_the_update_of_a_variable_is_fused_with_the_cast_of_its_gradient(
    on_free, through
):
    """In float32, to the same values; Keras hands gradients on by an IdentityN."""
    weights = tf.Variable(np.eye(WIDTH, dtype=np.float32), name="weights")

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        gradient = tf.matmul(x, x, transpose_a=True)
        if through:
            gradient, _ = tf.raw_ops.IdentityN(input=[gradient, x])
        with amp.keep_float32():
            weights.assign_sub(gradient * 0.5)
        return gradient

    x = np.eye(ROWS, WIDTH, dtype=np.float32) * 4.0  # exact in bfloat16
    with amp.mixed_precision_scope(dtype="bfloat16", assignment="all", strict=True):
        step(x)
    assert sum(fusion.clusters for fusion in on_free) == 1
    assert sum(fusion.casts_after for fusion in on_free) < 3
    np.testing.assert_array_equal(weights, np.eye(WIDTH) * (1.0 - 8.0))


def test_a_run_of_part_of_a_graph_must_be_fed_no_more_than_before():
    def build() -> None:
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")
        label = v1.placeholder(tf.float32, [ROWS, WIDTH], name="label")
        eye = tf.constant(np.eye(WIDTH, dtype=np.float32))
        with tf.name_scope("act"):
            given = tf.nn.elu(tf.nn.relu(tf.matmul(x, eye)))
            made = tf.square(given * label)
        tf.identity(tf.matmul(made, eye), name="out")
        tf.argmax(given, 1, name="guess")

    proto = graph_def(build)
    twin = rewrite(proto, fetches=["out", "guess"])
    assert calls(twin)
    value = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    want, got = (run(one, ["guess"], {"x": value})[0] for one in (proto, twin))
    np.testing.assert_array_equal(want, got)


def by_constant(y: tf.Tensor) -> tf.Tensor:
    """The gradient by the constant, which nobody asks for, is in the graph too."""
    return y * tf.sigmoid(y / 2.0)


def chosen(y: tf.Tensor) -> tf.Tensor:
    return y * tf.where(y > 0.0, tf.exp(y), -1e9)


@pytest.mark.parametrize("activation", [by_constant, chosen])
def test_a_cluster_gives_nothing_to_nodes_that_never_run(
    on_free, monkeypatch, activation
):
    """TensorFlow drops them from functions; what they alone read would be written."""
    made, was = [], fuse.fuse
    monkeypatch.setattr(fuse, "fuse", lambda *a: made.append(was(*a)) or made[-1])

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(functools.partial(layer, activation=activation))(x)
        return tape.gradient(y, x)

    with amp.mixed_precision_scope(strict=True, **WITH):
        step(some())
    (graph,) = made[0].linked.graphs.values()
    running = sources.needed(graph)
    clusters = [n for n in graph.nodes.values() if n.has(ir.CLUSTER)]
    assert clusters
    read = {e for name in running for e in graph.nodes[name].inputs}
    read |= {result.edge for result in graph.results}
    given = {(n.name, i) for n in clusters for i in range(len(n.types("Tout")))}
    assert given <= read


def test_a_cluster_does_not_run_what_no_result_needs(on_free):
    """It might fail: here a matrix without an inverse."""

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("act"):
            h = gelu(x @ tf.eye(WIDTH))
            tf.multiply(h, tf.linalg.inv(matrix), name="unused")
        return h @ tf.eye(WIDTH)

    singular = tf.zeros([ROWS, WIDTH, WIDTH])[0]
    x = some()[:WIDTH]
    want = step(x, singular)
    with amp.mixed_precision_scope(strict=True, **WITH):
        got = step(x, singular)
    close(got, want)
    assert sum(fusion.clusters for fusion in on_free) == 1


def test_the_updates_of_weights_that_are_alike_share_their_functions(on_free):
    """Each unscaled gradient says whose it is, and compiling takes 0.1 seconds."""
    weights = [tf.Variable(tf.eye(WIDTH), name=f"w{i}") for i in range(8)]
    momenta = [tf.Variable(tf.zeros([WIDTH, WIDTH]), name=f"m{i}") for i in range(8)]

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            y = tf.add_n([tf.matmul(x, w) for w in weights])
            loss = tf.reduce_sum(y * y)
        gradients = tape.gradient(loss, weights)
        for w, m, gradient in zip(weights, momenta, gradients, strict=True):
            m.assign(0.9 * m + 0.1 * gradient)
            w.assign_sub(0.1 * m)

    scope = amp.mixed_precision_scope(dtype="float16", assignment="all", strict=True)
    with scope:
        step(some())
    made = on_free[0]
    assert made.clusters >= len(weights)
    assert made.functions <= made.clusters - len(weights) + 2


def test_what_gets_a_length_is_not_of_fixed_sizes_though_it_gives_none(on_free):
    """Of one element at the first call, and then compiled for each length."""

    @tf.function(input_signature=[tf.TensorSpec([ROWS, None, WIDTH])])
    def step(x: tf.Tensor) -> tf.Tensor:
        y = x @ tf.eye(WIDTH)
        with tf.name_scope("act"):
            y = gelu(tf.reduce_sum(gelu(y), axis=1))
        return y @ tf.eye(WIDTH)

    for trial in (True, False):
        policy = {**WITH, "trial": trial, "check": False}
        with amp.mixed_precision_scope(strict=True, **policy):
            step(some()[:, tf.newaxis])
    assert [fusion.clusters for fusion in on_free] == [1, 0]
