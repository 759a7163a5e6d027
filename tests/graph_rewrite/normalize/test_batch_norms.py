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
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import batch_norms
from amp.graph_rewrite.normalize.batch_norms import fuse_batch_norms
from amp.graph_rewrite.normalize.bundles import bypass
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.ops import batch_norm
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.functions import definitions
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


UNFUSED = {
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


@pytest.mark.parametrize(("name", "index"), parts())
def test_a_part_that_reads_something_else_is_found_out(name: str, index: int) -> None:
    """Each input of each part counts: planted there, another tensor leaves it be."""
    module, _ = normalized(step(written_out), *specs())
    graph = module.main
    values = batch_norms._Values(graph)
    last = next(n for n, node in graph.nodes.items() if node.op == "RsqrtGrad")
    one = next(batch_norms._norms(values, last))
    node = graph.nodes[one.edges[name][0]]
    source = graph.nodes.get(node.inputs[index][0])
    shape = graph.shape(node.inputs[index]) or ()
    number = ir.INT32 if source is not None and ir.INT32 in source.types("dtype") else 1
    wrong = np.full(shape, 3)
    attrs = {"value": ir.Tensor(wrong, number), "dtype": ir.Type(number)}
    edges = list(node.inputs)
    edges[index] = ("wrong", 0)
    nodes = {
        **graph.nodes,
        "wrong": ir.Node("wrong", "Const", (), (), "", None, attrs),
        node.name: node.changed(tuple(edges)),
    }
    planted = fused(ir.Module(graph.with_nodes(nodes), module.functions)).main
    free = {"offset", "scale", "x", "dy"}  # given from outside, but all in one place
    part = next(part for part in batch_norm.PARTS if part.name == name)
    if (name, part.reads[index]) in {("term", "offset"), ("shifted", "epsilon")}:
        pytest.skip("any vector may be the offset, any number epsilon")
    assert part.reads[index] not in free or planted.ops.isdisjoint(KERNELS)
    assert planted.ops.isdisjoint(KERNELS)


def test_float32_is_priced_as_the_program_wrote_it() -> None:
    """Else the gain over the original would be predicted too small."""

    def between(x: Any, scale: Any, offset: Any) -> tuple[tf.Tensor, ...]:
        x = tf.nn.conv2d(x, FILTERS, 1, "SAME")
        y, *_ = written_out(x, scale, offset)
        return (tf.nn.conv2d(y, FILTERS, 1, "SAME"),)

    module, _trace = remembered(step(between), *specs(1024))
    seconds = {}
    for kept in (True, False):
        policy = dataclasses.replace(settled(), differentiable=kept)
        report = rewrite(module, policy).report
        assert ("RsqrtGrad" in {one.op for one in report.decisions}) is kept
        seconds[kept] = report.seconds32
    # Four of nine passes through the data are not in the price of the kernels, of 31.
    assert 0.75 < seconds[False] / seconds[True] < 1.05


def test_a_step_of_keras_trains_as_in_float32() -> None:
    """Weights and moving moments, over two batches of other sizes."""

    def weights(mixed: bool) -> list[np.ndarray]:
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
        draw = np.random.default_rng(1)
        x = draw.normal(size=(24, 8, 8, 3)).astype(np.float32)
        y = draw.normal(size=(24, 4)).astype(np.float32)
        policy = {"dtype": "bfloat16", "assignment": "all", "min_gain": 0.0}
        policy |= {"trial": False, "check": False, "strict": True}
        scope = amp.mixed_precision_scope(**policy)
        with scope if mixed else contextlib.nullcontext():
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(weight) for weight in model.weights]

    want, got = weights(False), weights(True)
    found = [d for r in amp.reports() for d in r.decisions if d.op in KERNELS]
    assert {decision.op for decision in found} == KERNELS
    for one, other in zip(want, got, strict=True):
        # Four updates of what bfloat16 rounds to 2**-8 of itself, each a hundredth.
        np.testing.assert_allclose(other, one, rtol=2**-6, atol=2**-6)


def test_a_graph_without_such_a_gradient_is_not_walked() -> None:
    graph = ir.Graph("", {})
    module = ir.Module(dataclasses.replace(graph, name="f"), {"g": graph})
    assert fused(module).main is module.main
