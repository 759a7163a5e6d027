"""`batch_norms`: batch normalization written out becomes kernels that give the same."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, traced

import amp
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import written_norms
from amp.graph_rewrite.normalize.batch_norms import fuse_batch_norms
from amp.graph_rewrite.normalize.bundles import bypass
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.ops import batch_norm
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.runtime import definitions
from amp.policy import Policy

SHAPE, CHANNELS = (4, 6, 5, 8), 8
AXES = (0, 1, 2)
KERNELS = {batch_norm.FUSED, batch_norm.FUSED_GRADIENT}
Norm = Callable[..., Any]
FILTERS = np.ones((3, 3, CHANNELS, CHANNELS), np.float32)


def written_out(
    x: tf.Tensor,
    scale: tf.Tensor | None,
    offset: tf.Tensor,
    *,
    axes: Sequence[int] = AXES,
    keepdims: bool = False,
    epsilon: Any = 1e-3,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    mean, variance = tf.nn.moments(x, axes, keepdims=keepdims)
    y = tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
    return y, mean, variance


def step(norm: Norm, *, scaled: bool = True) -> Callable[..., Any]:
    """What training has: the result, both moments, and the gradients by everything."""

    def function(
        x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, dy: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch((x, scale, offset))
            y, *others = norm(x, scale if scaled else None, offset)
        by = tape.gradient(y, (x, scale, offset), dy)
        found = dict(zip(("x", "scale", "offset"), by, strict=True))
        gradients = {f"by {n}": each for n, each in found.items() if each is not None}
        return {"y": y, **gradients, **{str(i): o for i, o in enumerate(others)}}

    return function


def specs(batch: int | None = SHAPE[0]) -> list[tf.TensorSpec]:
    data = tf.TensorSpec((batch, *SHAPE[1:]), tf.float32)
    vector = tf.TensorSpec((CHANNELS,), tf.float32)
    return [data, vector, vector, data]


def remembered(function: Callable[..., Any], *args: Any) -> tuple[ir.Module, Any]:
    with amp.mixed_precision_scope(dtype="bfloat16"):  # that it is
        return traced(function, *args)


def normalized(function: Callable[..., Any], *args: Any) -> tuple[ir.Module, Any]:
    """The module as `fuse_batch_norms` gets it, and the trace, which has its shapes."""
    module, trace = remembered(function, *args)
    return bypass(inline(module), frozenset(), False), trace


def fused(module: ir.Module, **given: Any) -> ir.Module:
    policy = given.pop("policy", Policy())
    return fuse_batch_norms(module, policy, given.pop("differentiable", False))


def run(module: ir.Module, trace: Any, *args: Any) -> dict[str, np.ndarray]:
    main = module.main.of_same_nodes(name=f"{module.main.name}_normalized")
    made = definitions.concrete_of(trace, ir.Module(main, module.functions))
    outputs = tf.nest.map_structure(lambda tensor: tensor.numpy(), made(*args))
    return dict(outputs)


def inputs(batch: int = SHAPE[0]) -> list[tf.Tensor]:
    draw = np.random.default_rng(0)
    data = (batch, *SHAPE[1:])
    made = (
        draw.normal(3.0, 2.0, data),
        draw.uniform(0.5, 2.0, CHANNELS),
        draw.normal(size=CHANNELS),
        draw.normal(size=data),
    )
    return [tf.constant(each, tf.float32) for each in made]


def exact(
    x: Any, scale: Any, offset: Any, dy: Any, epsilon: float = 1e-3
) -> dict[str, Any]:
    """The paper's formulas in float64 (Ioffe and Szegedy 2015, section 3)."""
    x, scale, offset, dy = (
        np.asarray(each, np.float64) for each in (x, scale, offset, dy)
    )
    mean, variance = x.mean(AXES), x.var(AXES)
    root = 1.0 / np.sqrt(variance + epsilon)
    hat = (x - mean) * root
    along = dy - dy.mean(AXES) - hat * (dy * hat).mean(AXES)
    return {
        "y": scale * hat + offset,
        "0": mean,
        "1": variance,
        "by x": scale * root * along,
        "by scale": (dy * hat).sum(AXES),
        "by offset": dy.sum(AXES),
    }


# In float32 each value is at most as many roundings from the exact one as a channel has
# elements and there are steps, each of at most 2**-24 of the largest term: no term of
# these inputs is over 4 standard deviations of 2, or 11 from 0, squared.
LARGEST = 121.0


def bound(terms: int) -> float:
    return (terms + 32) * 2.0**-24 * LARGEST


@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("batch", [SHAPE[0], None], ids=["known", "unknown"])
def test_the_kernels_give_what_the_program_wrote(
    scaled: bool, batch: int | None
) -> None:
    function = step(written_out, scaled=scaled)
    module, trace = normalized(function, *specs(batch))
    made = fused(module)
    assert made.main.ops >= KERNELS
    assert made.main.ops.isdisjoint({"SquaredDifference", "RsqrtGrad", "Rsqrt"})
    for rows in (SHAPE[0], SHAPE[0] if batch else 1):
        given = inputs(rows)
        scale = given[1] if scaled else np.ones(CHANNELS)
        want = exact(given[0], scale, *given[2:])
        got = run(made, trace, *given)
        assert got.keys() == (want.keys() if scaled else want.keys() - {"by scale"})
        terms = rows * SHAPE[1] * SHAPE[2]
        for name, values in got.items():
            np.testing.assert_allclose(
                values, want[name], rtol=0, atol=bound(terms), err_msg=name
            )


def test_one_element_a_channel_has_no_variance() -> None:
    """The kernel's variance is divided by N - 1, which is taken back: 0, not NaN."""
    data = tf.TensorSpec((None, 1, 1, CHANNELS), tf.float32)
    vector = tf.TensorSpec((CHANNELS,), tf.float32)
    module, trace = normalized(step(written_out), data, vector, vector, data)
    made = fused(module)
    assert made.main.ops >= KERNELS
    one = tf.random.stateless_normal((1, 1, 1, CHANNELS), (1, 2))
    got = run(made, trace, one, tf.ones(CHANNELS), tf.zeros(CHANNELS), one)
    np.testing.assert_array_equal(got["1"], np.zeros(CHANNELS))
    assert all(np.isfinite(values).all() for values in got.values())


def test_more_elements_than_32_bits_count_are_counted() -> None:
    """`Size` refuses to count more in 32 bits; the program counts them by channel."""
    module, _ = normalized(step(written_out), *specs(None))
    main = fused(module).main
    sizes = [node for node in main.nodes.values() if node.op == "Size"]
    readers = [main.nodes[n] for size in sizes for n, _ in main.readers[size.name, 0]]
    assert readers
    assert {number for size in sizes for number in size.types("out_type")} == {ir.INT64}
    assert {number for cast in readers for number in cast.types("SrcT")} == {ir.INT64}


@pytest.mark.parametrize("shape", [(0, *SHAPE[1:]), (SHAPE[0], 0, *SHAPE[2:])])
def test_no_elements_have_no_kernel(shape: tuple[int, ...]) -> None:
    """Their moments are NaN, and the number that corrects a variance is none."""
    data, vector = tf.TensorSpec(shape), tf.TensorSpec((CHANNELS,))
    module, _ = normalized(step(written_out), data, vector, vector, data)
    assert fused(module).main is module.main


def test_a_step_on_no_examples_has_no_fault() -> None:
    model = keras.Sequential(
        [
            keras.Input(SHAPE[1:]),
            keras.layers.Conv2D(CHANNELS, 3, padding="same"),
            keras.layers.BatchNormalization(),
        ]
    )

    @tf.function
    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    with amp.mixed_precision_scope(dtype="bfloat16", assignment="all", strict=True):
        for _ in range(2):
            assert len(gradients(inputs()[0][:0])) == 4


def beside(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The data go past the normalization too, as in a residual block."""
    y, mean, variance = written_out(x, scale, offset)
    return y + tf.tanh(x), mean, variance


def twice(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """One right behind the other."""
    y, mean, variance = written_out(x, scale, offset)
    return written_out(y, scale, offset)[0], mean, variance


def swish(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """A function with a gradient of its own waits for the result."""
    y, mean, variance = written_out(x, scale, offset)
    return tf.nn.silu(y), mean, variance


def keras_layer(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    mean, variance = keras.ops.moments(x, AXES)
    y = keras.ops.batch_normalization(x, mean, variance, -1, offset, scale, 1e-3)
    return y, mean, variance


@pytest.mark.parametrize(
    ("norm", "count"), [(beside, 1), (twice, 2), (swish, 1), (keras_layer, 1)]
)
@pytest.mark.parametrize("batch", [SHAPE[0], None], ids=["known", "unknown"])
def test_what_stands_around_does_not_matter(
    norm: Norm, count: int, batch: int | None
) -> None:
    module, trace = normalized(step(norm), *specs(batch))
    made = fused(module)
    ops = [node.op for node in made.main.nodes.values()]
    assert [ops.count(kernel) for kernel in sorted(KERNELS)] == [count, count]
    given = inputs()
    want, got = run(module, trace, *given), run(made, trace, *given)
    terms = SHAPE[0] * SHAPE[1] * SHAPE[2]
    for name in want:  # both are off by at most the bound, twice one behind another
        atol = 4 * bound(terms)
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=atol)


def reads_the_deviation(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    mean = tf.reduce_mean(x, AXES, keepdims=True)
    squares = tf.math.squared_difference(x, tf.stop_gradient(mean))
    variance = tf.squeeze(tf.reduce_mean(squares, AXES, keepdims=True), AXES)
    mean = tf.squeeze(mean, AXES)
    y = tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)
    return y, tf.stop_gradient(squares)


def keeps(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, ...]:
    with amp.keep_float32():
        return written_out(x, scale, offset)


def scale_of_moments(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The kernel takes the scale before it gives the moments."""
    mean, variance = tf.nn.moments(x, AXES)
    scale = scale + tf.stop_gradient(tf.tanh(mean))
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3), mean


def moments_of_another(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    mean, variance = tf.nn.moments(tf.tanh(x), AXES)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3), mean


def given_moments(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """As in inference: no moments of the batch."""
    ones = tf.ones(CHANNELS)
    return (tf.nn.batch_normalization(x, ones, ones, offset, scale, 1e-3),)


def differentiated_mean(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The mean's gradient has a further term, which the kernel's has not."""
    y, mean, variance = written_out(x, scale, offset)
    return y + mean, mean, variance


def told_by_a_vector(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Data that repeat a vector: the kernel would get the vector."""
    vector = tf.reduce_mean(x, AXES, keepdims=True)
    return written_out(tf.broadcast_to(vector, SHAPE), scale, offset)


def on_another_device(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    mean, variance = tf.nn.moments(x, AXES)
    with tf.device("CPU:0"):
        y = tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)
    return y, mean, variance


UNFUSED = {
    "on another device": on_another_device,
    "a large part is read": reads_the_deviation,
    "kept in float32": keeps,
    "the scale reads the moments": scale_of_moments,
    "moments of something else": moments_of_another,
    "moments from outside": given_moments,
    "the moments are differentiated": differentiated_mean,
    "along other axes": functools.partial(written_out, axes=(1, 2), keepdims=True),
    "an epsilon for each channel": functools.partial(
        written_out, epsilon=tf.fill([CHANNELS], 1e-3)
    ),
}


@pytest.mark.parametrize("norm", UNFUSED.values(), ids=UNFUSED)
def test_what_is_another_computation_stays(norm: Norm) -> None:
    module, _ = normalized(step(norm), *specs())
    made = fused(module)
    assert made.main.nodes.keys() == module.main.nodes.keys()
    assert made.main.ops.isdisjoint(KERNELS)


@pytest.mark.parametrize("norm", [written_out, told_by_a_vector])
def test_data_and_gradients_that_repeat_a_vector_run(norm: Norm) -> None:
    """The kernels need them whole, though beside a vector they stand for one."""

    def function(
        x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, dy: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch((x, scale, offset))
            y, *_ = norm(x, scale, offset)
            loss = tf.reduce_sum(tf.reduce_sum(y, AXES, keepdims=True) * dy[:1, :1, :1])
        by = tape.gradient(loss, (x, scale, offset))
        return {"y": y, "by x": by[0], "by scale": by[1], "by offset": by[2]}

    module, trace = normalized(function, *specs())
    made = fused(module)
    assert made.main.ops >= KERNELS
    given = inputs()
    want, got = run(module, trace, *given), run(made, trace, *given)
    terms = SHAPE[0] * SHAPE[1] * SHAPE[2]
    # The gradients are sums of so many terms, of two factors under 4 deviations each.
    atol = 2 * (terms + 32) * 2.0**-24 * terms * 16
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=atol)


def test_what_the_policy_keeps_is_no_part_of_a_kernel() -> None:
    module, _ = normalized(step(written_out), *specs())
    for policy in (Policy(keep=("*moments*",)), Policy(deny=("Rsqrt",))):
        assert KERNELS.isdisjoint(fused(module, policy=policy).main.ops)
    assert fused(module, policy=Policy(keep=("other",))).main.ops >= KERNELS


def kernels() -> set[tuple[str, str]]:
    """The kernels in functions that are still there, each with its type."""
    found = (d for r in amp.reports() for d in r.decisions)
    return {(d.op, d.dtype) for d in found if d.op in KERNELS}


def test_what_tf_gradients_builds_is_found() -> None:
    """Its nodes name one another's places, of which some are gone then."""

    def function(*given: tf.Tensor) -> dict[str, tf.Tensor]:
        x, scale, offset, dy = given
        y, mean, variance = written_out(x, scale, offset)
        by = tf.gradients(y, [x, scale, offset], dy)
        names = ("by x", "by scale", "by offset")
        return {"y": y, "0": mean, "1": variance, **dict(zip(names, by, strict=True))}

    module, trace = normalized(function, *specs())
    assert any(node.has("_class") for node in module.main.nodes.values())
    made = fused(module)
    assert made.main.ops >= KERNELS
    given = inputs()
    want, got = exact(*given), run(made, trace, *given)
    for name in got:
        atol = bound(SHAPE[0] * SHAPE[1] * SHAPE[2])
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=atol)


def counting(graph: ir.Graph) -> list[tuple[str, int]]:
    """The inputs of the nodes by which the elements of a channel are counted."""
    values = written_norms.Values(graph)
    last = next(n for n, node in graph.nodes.items() if node.op == "RsqrtGrad")
    one = next(written_norms.norms(values, last))
    found, name = [], one.edges["count"][0]
    for _ in batch_norm.COUNTED:
        found += [(name, index) for index in range(len(graph.nodes[name].inputs))]
        name = graph.nodes[name].inputs[0][0]
    return found


def test_another_count_is_found_out() -> None:
    """Where the batch is not known, the count is computed: another tensor leaves it."""
    module, _ = normalized(step(written_out), *specs(None))
    planted = counting(module.main)
    assert len(planted) == 7
    for name, index in planted:
        made = fused(with_wrong_input(module, name, index, 1)).main
        assert made.ops.isdisjoint(KERNELS), (name, index)


def test_it_is_left_to_xla_to_emulation_and_to_who_takes_gradients() -> None:
    module, _ = normalized(step(written_out), *specs())
    assert fused(module).main.ops >= KERNELS
    emulating = Policy(emulate=True)
    for given in ({"policy": emulating}, {"differentiable": True}):
        assert KERNELS.isdisjoint(fused(module, **given).main.ops)
    compiled = tf.function(step(written_out), jit_compile=True)
    module, _ = normalized(compiled, *specs())
    assert "RsqrtGrad" in module.main.ops
    assert KERNELS.isdisjoint(fused(module).main.ops)


def parts() -> list[tuple[str, int]]:
    return [
        (part.name, index)
        for part in batch_norm.PARTS
        for index in range(len(part.reads))
    ]


def with_wrong_input(
    module: ir.Module, name: str, index: int, value: float
) -> ir.Module:
    """The module where an input of a node is another constant of the same shape."""
    graph = module.main
    node = graph.nodes[name]
    source = graph.nodes.get(node.inputs[index][0])
    integer = source is not None and source.op not in ("Mul", "Sub") and any(
        ir.INT32 in source.types(attr) for attr in ("dtype", "out_type", "Tparams", "T")
    )  # fmt: skip
    number = ir.INT32 if integer else ir.FLOAT
    shape = [1 if size < 0 else size for size in graph.shape(node.inputs[index]) or ()]
    attrs = {"value": ir.Tensor(np.full(shape, value), number)}
    attrs |= {"dtype": ir.Type(number)}
    edges = list(node.inputs)
    edges[index] = ("wrong", 0)
    nodes = {
        **graph.nodes,
        "wrong": ir.Node("wrong", "Const", (), (), "", None, attrs),
        name: node.changed(tuple(edges)),
    }
    return ir.Module(graph.with_nodes(nodes), module.functions)


CHANGES: dict[str, dict[str, Any]] = {
    "waits": {"controls": ("another",)},
    "is elsewhere": {"device": "/device:CPU:1"},
    **{mark: {"updates": {mark: True}} for mark in (ir.KEEP, ir.UNSCALE, ir.SEED)},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["scaled", "through_mean", "mean"])
def test_a_part_that_is_marked_or_placed_or_waits_leaves_it(
    name: str, change: dict[str, Any]
) -> None:
    module, _ = normalized(step(written_out), *specs())
    graph = module.main
    values = written_norms.Values(graph)
    last = next(n for n, node in graph.nodes.items() if node.op == "RsqrtGrad")
    part = graph.nodes[next(written_norms.norms(values, last)).edges[name][0]]
    other = ir.Node("another", "NoOp", (), (), "", None)
    changed = dataclasses.replace(part, **change, pristine=False)
    nodes = {**graph.nodes, other.name: other, part.name: changed}
    planted = ir.Module(graph.with_nodes(nodes), module.functions)
    assert fused(planted).main.ops.isdisjoint(KERNELS)
    if "controls" not in change:
        return
    awaiting = dataclasses.replace(other, controls=(part.name,))
    nodes = {**graph.nodes, other.name: awaiting}
    runs = dataclasses.replace(graph.with_nodes(nodes), control_results=(other.name,))
    planted = ir.Module(runs, module.functions)
    assert fused(planted).main.ops.isdisjoint(KERNELS)


# Any vector may be the offset, and any number epsilon.
FREE = {("term", 0), ("shifted", 1)}


@pytest.mark.parametrize(("name", "index"), [p for p in parts() if p not in FREE])
def test_a_part_that_reads_something_else_is_found_out(name: str, index: int) -> None:
    """Each input of each part counts: planted there, another tensor leaves it be."""
    module, _ = normalized(step(written_out), *specs())
    values = written_norms.Values(module.main)
    nodes = module.main.nodes.items()
    last = next(node_name for node_name, node in nodes if node.op == "RsqrtGrad")
    one = next(written_norms.norms(values, last))
    planted = with_wrong_input(module, one.edges[name][0], index, 3)
    assert fused(planted).main.ops.isdisjoint(KERNELS)


def test_float32_is_priced_as_the_program_wrote_it() -> None:
    """Else the gain over the original would be predicted too small."""

    def between(x: Any, scale: Any, offset: Any) -> tuple[tf.Tensor, ...]:
        x = tf.nn.conv2d(x, FILTERS, 1, "SAME")
        y, *_ = written_out(x, scale, offset)
        return (tf.nn.conv2d(y, FILTERS, 1, "SAME"),)

    module, _trace = remembered(step(between), *specs(1024))
    seconds = {}
    for kept in (True, False):
        policy = dataclasses.replace(settled(A100), differentiable=kept)
        report = rewrite(module, policy).report
        assert ("RsqrtGrad" in {one.op for one in report.decisions}) is kept
        seconds[kept] = report.seconds32
    # Four of nine passes through the data are not in the price of the kernels, of 31,
    # and nodes that nothing needs are in that of the original alone.
    assert 0.7 < seconds[False] / seconds[True] < 1.05


def test_a_step_of_keras_updates_as_in_float32() -> None:
    """Weights and moving moments, over batches of two sizes."""

    def updates(**more: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(16, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(4, 3),
                layers.GlobalAveragePooling2D(),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
        before = [np.asarray(weight).copy() for weight in model.weights]
        draw = np.random.default_rng(1)
        x = draw.normal(size=(24, 8, 8, 3)).astype(np.float32)
        y = draw.normal(size=(24, 4)).astype(np.float32)
        policy = {"assignment": "all", "trial": False, "check": False, "strict": True}
        scope = amp.mixed_precision_scope(**policy, **more)
        with scope if more else contextlib.nullcontext():
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        low = {(op, "bfloat16") for op in KERNELS}
        assert kernels() == (low if more and "deny" not in more else set())
        return [np.asarray(w) - b for w, b in zip(model.weights, before, strict=True)]

    want = updates()
    written = updates(dtype="bfloat16", deny=("Rsqrt",))
    got = updates(dtype="bfloat16")
    for exactly, as_written, one in zip(want, written, got, strict=True):
        # The kernels' data are rounded as the products beside them round them, and once
        # more, to 2**-9 of themselves, where the result and the gradient leave them.
        size = np.linalg.norm(exactly)
        off = np.linalg.norm(as_written - exactly) / size
        assert np.linalg.norm(one - exactly) / size < 2 * off + 4 * 2.0**-9


def test_a_graph_without_such_a_gradient_is_not_walked() -> None:
    graph = ir.Graph("", {})
    module = ir.Module(dataclasses.replace(graph, name="f"), {"g": graph})
    assert fused(module).main is module.main
