"""`Loops`: what is said of XLA's loops is what XLA for CPUs makes of the same nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf
from rewriting import context_of, spec, traced

from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.cost.loops import Loops, Moved
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.integration.install import install

raw = tf.raw_ops
Fn = Callable[..., tf.Tensor]

SIZE = 64  # of both sides: all tensors but sums have as many elements
IMAGE, KERNEL = (2, 8, 8, 4), (3, 3, 4, 4)
SAME = {"strides": [1] * 4, "padding": "SAME"}


@pytest.fixture(autouse=True)
def shapes_are_known() -> None:
    """The hooks remember the graph that a function was traced as."""
    install()


def compiled(fn: Fn, *specs: tf.TensorSpec) -> str:
    """What XLA made of a function, as text."""
    function = tf.function(fn, jit_compile=True, autograph=False)
    args = [tf.zeros(one.shape, one.dtype) for one in specs]
    return str(function.experimental_get_compiler_ir(*args)(stage="optimized_hlo"))


def instructions(hlo: str) -> Iterator[tuple[str, str, str]]:
    """Type, shape and operation of each instruction that XLA runs by itself."""
    entry = hlo[hlo.index("\nENTRY ") :]
    for found in re.finditer(r"= (\w+)\[([\d,]*)\]\S* ([\w-]+)\(", entry):
        yield found[1], found[2], found[3]


PRODUCTS: dict[str, tuple[Fn, tuple[int, ...], tuple[int, ...]]] = {
    "MatMul": (lambda x, y: tf.matmul(x, y), (32, 64), (64, 32)),
    "MatMul, first transposed": (
        *(lambda x, y: tf.matmul(x, y, transpose_a=True), (64, 32), (64, 32)),
    ),
    "MatMul, second transposed": (
        *(lambda x, y: tf.matmul(x, y, transpose_b=True), (32, 64), (32, 64)),
    ),
    "BatchMatMulV2": (lambda x, y: tf.matmul(x, y), (4, 32, 64), (4, 64, 32)),
    "Einsum": (
        *(
            lambda x, y: tf.einsum("btnh,bsnh->bnts", x, y),
            (2, 8, 4, 16),
            (2, 8, 4, 16),
        ),
    ),
    "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGE, KERNEL),
    "Conv2DBackpropInput": (
        lambda w, dy: raw.Conv2DBackpropInput(
            input_sizes=list(IMAGE), filter=w, out_backprop=dy, **SAME
        ),
        *(KERNEL, IMAGE),
    ),
    "Conv2DBackpropFilter": (
        lambda x, dy: raw.Conv2DBackpropFilter(
            input=x, filter_sizes=list(KERNEL), out_backprop=dy, **SAME
        ),
        *(IMAGE, IMAGE),
    ),
    "DepthwiseConv2dNative": (
        lambda x, w: raw.DepthwiseConv2dNative(input=x, filter=w, **SAME),
        *(IMAGE, (3, 3, 4, 1)),
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_xla_for_cpus_computes_every_product_in_float32(name: str, dtype: str) -> None:
    """`Device.widens`: the operands are converted before it, the result after it."""
    fn, *shapes = PRODUCTS[name]
    found = list(instructions(compiled(fn, *(tf.TensorSpec(s, dtype) for s in shapes))))
    products = [one for one in found if one[2] in ("dot", "convolution")]
    assert [kind for kind, _, _ in products] == ["f32"]
    assert not [one for one in found if one[2] == "custom-call"]
    loops = [one for one in found if one[2] == "fusion"]
    assert sum(kind == "f32" for kind, _, _ in loops) >= 2
    assert loops[-1][0] == {"bfloat16": "bf16", "float16": "f16"}[dtype]
    assert CPU_AMX.under(True).widens


def gelu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.gelu(x, approximate=False)


def norm(x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(tf.reduce_mean((x - mean) ** 2, -1, True) + 1e-5)


def branched(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """A cheap value is computed anew in each loop that reads it, a tanh is not."""
    cheap, dear = x + y, tf.tanh(x)
    return tf.matmul(cheap * 2.0, y), tf.matmul(cheap * 3.0 + dear, x * dear)


# By name: a function, and how many tensors of the whole size its products and loops
# write.
FUSED: dict[str, tuple[Fn, int]] = {
    "a chain": (lambda x, y: tf.nn.relu(x * y + x) - y, 1),
    "product, bias and activation": (lambda x, y: gelu(tf.matmul(x, y) + y[0]), 2),
    "two products": (lambda x, y: tf.matmul(tf.nn.relu(tf.matmul(x, y)), y), 3),
    "products without a loop": (lambda x, y: tf.matmul(tf.matmul(x, y), y), 2),
    "a sum of a product": (lambda x, y: tf.reduce_sum(tf.matmul(x, y), 1), 1),
    "layer normalisation": (lambda x, y: norm(x + y), 3),
    "moves": (lambda x, y: tf.transpose(x)[::-1] + y, 1),
    "a product of what is computed": (lambda x, y: tf.matmul(x + 1.0, y * 2.0), 3),
    "branches": (branched, 6),
}


@pytest.mark.parametrize("name", FUSED)
def test_as_many_tensors_are_written_as_xla_writes(name: str) -> None:
    fn, count = FUSED[name]
    given = [spec(SIZE, SIZE), spec(SIZE, SIZE)]
    whole = ",".join([str(SIZE)] * 2)
    made = [one for one in instructions(compiled(fn, *given)) if one[2] != "parameter"]
    written = [op for _, shape, op in made if shape == whole and op != "bitcast"]
    assert len(written) == count, made

    module, _ = traced(fn, *given)
    typed = type_ports(module.main, context_of(module, CPU_AMX, xla=True))
    loops = Loops(module.main, typed, "CPU")
    found = Counter(
        view.node.op
        for name, view in typed.items()
        if view.outs and module.main.size((name, 0)) == (SIZE, SIZE)
        if loops.moved(name).starts or view.facts.work.endswith("matmul")
    )
    assert found.total() == count, found


def moved(fn: Fn, op: str) -> list[Moved]:
    module, _ = traced(fn, spec(SIZE, SIZE), spec(SIZE, SIZE))
    typed = type_ports(module.main, context_of(module, CPU_AMX, xla=True))
    loops = Loops(module.main, typed, "CPU")
    return [loops.moved(name) for name, view in typed.items() if view.node.op == op]


ALL = SIZE * SIZE


def test_a_loop_reads_what_is_given_and_writes_its_result() -> None:
    fn = lambda x, y: tf.tanh(x * y)  # noqa: E731
    assert moved(fn, "Mul") == [Moved(given=2 * ALL)]
    assert moved(fn, "Tanh") == [Moved(own=ALL, starts=True)]


def test_a_tensor_is_read_once_by_each_loop() -> None:
    def fn(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        z = tf.matmul(x, y)
        return tf.matmul(tf.nn.relu(z) * z, x), tf.matmul(z - 1.0, x)

    first, *others = moved(fn, "MatMul")
    assert first == Moved(own=2 * ALL, widened=2 * ALL)
    # Of their operands one is made by a loop, which converts it too.
    assert others == [Moved(widened=ALL, narrowed=ALL)] * 2


def test_another_shape_of_a_tensor_is_the_same_tensor() -> None:
    fn = lambda x, y: tf.nn.relu(tf.reshape(tf.matmul(x, y), [-1]))  # noqa: E731
    assert moved(fn, "Reshape") == [Moved()]
    assert moved(fn, "MatMul") == [Moved(own=ALL, widened=2 * ALL)]


def test_an_op_of_which_nothing_is_known_is_in_no_loop() -> None:
    fn = lambda x, y: tf.linalg.cholesky(x + y) * y  # noqa: E731
    assert moved(fn, "Cholesky") == [Moved(own=ALL)]
    assert moved(fn, "AddV2") == [Moved(own=ALL, given=2 * ALL, starts=True)]


def test_on_a_gpu_what_is_reduced_is_computed_on_the_way() -> None:
    fn = lambda x, y: tf.reduce_sum(x * y, 0)  # noqa: E731
    assert moved(fn, "Mul") == [Moved(own=2 * ALL, given=2 * ALL, starts=True)]
    module, _ = traced(fn, spec(SIZE, SIZE), spec(SIZE, SIZE))
    typed = type_ports(module.main, context_of(module, A100, xla=True))
    loops = Loops(module.main, typed, "GPU")
    (name,) = [name for name, view in typed.items() if view.node.op == "Mul"]
    assert loops.moved(name) == Moved(given=2 * ALL)
