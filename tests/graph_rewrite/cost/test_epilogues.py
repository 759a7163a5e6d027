"""`epilogues`: what TensorFlow merges into a node is free, unless it is torn apart."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
import tensorflow as tf
from rewriting import (
    CPU,
    analysis_of,
    context_of,
    graph_def,
    module_of,
    plan_of,
    priced_of,
    v1,
)
from tensorflow.python.eager import context as context_lib
from tensorflow.python.framework import test_util

from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.epilogues import Merged, epilogues
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.ops.chains import CHAINS
from amp.graph_rewrite.plan import Plan

ROWS, COLUMNS = 512, 1024
GPUS = tf.config.list_physical_devices("GPU")


def found(build: Callable[[], object], **fields: object) -> list[Merged]:
    module = module_of(graph_def(build))
    (one,) = analysis_of(module, context_of(module, **fields)).uses.values()
    return list(epilogues(one.graph, one.context))


def merged(build: Callable[[], object], **fields: object) -> set[str]:
    return {one.name for one in found(build, **fields)}


def layer(activation: Callable[..., tf.Tensor] = tf.nn.relu) -> tf.Tensor:
    x = v1.placeholder(tf.float32, [ROWS, COLUMNS])
    w = v1.placeholder(tf.float32, [COLUMNS, COLUMNS])
    b = v1.placeholder(tf.float32, [COLUMNS])
    product = tf.matmul(x, w, name="product")
    return activation(tf.nn.bias_add(product, b, name="bias"), name="activation")


def convolved(size: int = 3) -> tf.Tensor:
    x = v1.placeholder(tf.float32, [8, 32, 32, 16])
    w = v1.placeholder(tf.float32, [size, size, 16, 16])
    product = tf.nn.conv2d(x, w, 1, "SAME", name="product")
    biased = tf.nn.bias_add(product, v1.placeholder(tf.float32, [16]), name="bias")
    return tf.nn.relu(biased, name="activation")


def test_what_others_read_as_well_is_not_merged() -> None:
    def build() -> None:
        layer()
        graph = v1.get_default_graph()
        tf.abs(graph.get_tensor_by_name("product:0"))

    assert merged(build) == set()


def test_what_a_node_waits_for_is_not_merged() -> None:
    def build() -> None:
        graph = v1.get_default_graph()
        with graph.control_dependencies([layer()]):
            tf.no_op()

    assert merged(build) == {"bias"}


def test_nothing_is_merged_under_xla_and_emulation() -> None:
    assert merged(layer, xla=True) == set()
    assert merged(layer, emulate=True) == set()


def test_a_type_that_the_remapper_does_not_know_is_not_merged() -> None:
    assert {one.types for one in found(layer)} == {(True, True)}
    assert {one.types for one in found(layer, dtype="float16")} == {(True, False)}


def test_a_gpu_merges_a_window_with_bias_and_relu_in_float32_alone() -> None:
    gpu = {"device": A100, "dtype": "float16"}
    bias, relu = found(convolved, **gpu)
    assert bias == Merged("bias", ("product", "activation"), (True, False))
    assert relu == Merged("activation", ("product", "bias"), (True, False))
    assert merged(lambda: convolved(size=1), **gpu) == set()
    assert merged(layer, **gpu) == set()


def features(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec(shape)


X, W, B = features(64, 64), features(64, 64), features(64)
IMAGE, KERNEL, CHANNELS = features(2, 8, 8, 4), features(3, 3, 4, 8), features(8)
SIDE, DEPTH = features(2, 8, 8, 8), features(3, 3, 4, 1)
VOLUME, CUBE = features(1, 4, 4, 4, 4), features(3, 3, 3, 4, 8)
VOLUME_SIDE = features(1, 4, 4, 4, 8)
HEADS = features(2, 4, 16, 8)

Fn = Callable[..., tf.Tensor]
ACTIVATIONS: dict[str, Fn] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "elu": tf.nn.elu,
    "leaky": tf.nn.leaky_relu,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "selu": tf.nn.selu,
}


def conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(x, w, 1, "SAME")


def conv3d(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv3d(x, w, [1] * 5, "SAME")


def depthwise(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME")


PRODUCTS: dict[str, tuple[Fn, tuple[tf.TensorSpec, ...], tf.TensorSpec]] = {
    "matmul": (tf.matmul, (X, W, B), X),
    "conv": (conv, (IMAGE, KERNEL, CHANNELS), SIDE),
    "conv3d": (conv3d, (VOLUME, CUBE, CHANNELS), VOLUME_SIDE),
    "depthwise": (depthwise, (IMAGE, DEPTH, features(4)), IMAGE),
}


def cases() -> dict[str, tuple[Fn, tuple[tf.TensorSpec, ...]]]:
    """Functions by name, with the specifications of their arguments."""
    made: dict[str, tuple[Fn, tuple[tf.TensorSpec, ...]]] = {}
    biases: dict[str, Fn] = {"bias": tf.nn.bias_add, "sum": lambda y, b: b + y}
    for name, (product, given, side) in PRODUCTS.items():
        for kind, add in biases.items():

            def biased(
                *args: tf.Tensor, product: Fn = product, add: Fn = add
            ) -> tf.Tensor:
                return add(product(*args[:2]), args[2])

            made[f"{name}, {kind}"] = (biased, given)
            made[f"{name}, {kind}, side"] = (
                lambda *args, biased=biased: args[3] + biased(*args),
                (*given, side),
            )
            for word, act in ACTIVATIONS.items():
                made[f"{name}, {kind}, {word}"] = (
                    lambda *args, biased=biased, act=act: act(biased(*args)),
                    given,
                )
                made[f"{name}, {kind}, side, {word}"] = (
                    lambda *args, biased=biased, act=act: act(args[3] + biased(*args)),
                    (*given, side),
                )
    for word, act in ACTIVATIONS.items():
        made[f"no bias, {word}"] = (lambda x, w, act=act: act(x @ w), (X, W))
        made[f"normalised, {word}"] = (
            lambda x, s, act=act: act(normalised(x, s)),
            (IMAGE, features(4)),
        )
    made["conv, bias of rank 4"] = (
        lambda x, w, b: tf.nn.relu(conv(x, w) + b),
        (IMAGE, KERNEL, features(1, 1, 1, 8)),
    )
    made["matmul, bias of rank 2"] = (
        lambda x, w, b: x @ w + b,
        (X, W, features(1, 64)),
    )
    made["matmul, reshape, bias"] = (
        lambda x, w, b: tf.reshape(x @ w, [4, 16, 64]) + b,
        (X, W, B),
    )
    made["matmul, bias, broadcast"] = (
        lambda x, w, b: tf.nn.bias_add(x @ w, b) + b,
        (X, W, B),
    )
    made["swish"] = (lambda x: x * tf.sigmoid(x), (X,))
    made["gate"] = (lambda x, y: y * tf.sigmoid(x), (X, X))
    for shape in ((2, 1, 16, 16), (1, 1, 1, 16), (16, 16), (2, 4, 16, 16)):
        made[f"attention, mask {shape}"] = (attention, (HEADS, features(*shape)))
    made["attention, divided"] = (
        lambda q, mask: tf.matmul(q, q, transpose_b=True) / number(q, 3.0) + mask,
        (HEADS, features(2, 1, 16, 16)),
    )
    made["attention, no mask"] = (
        lambda q: tf.matmul(q, q, transpose_b=True) * number(q, 0.3),
        (HEADS,),
    )
    for rows in (2, None):
        layer_norm = features(2, 8, 16) if rows else tf.TensorSpec([None, 8, 16])
        made[f"layer normalisation, batch of {rows}"] = (
            by_rows,
            (layer_norm, features(16), features(16)),
        )
    made["layer normalisation by moments"] = (
        by_moments,
        (features(2, 8, 16), features(16), features(16)),
    )
    return made


def number(like: tf.Tensor, value: float) -> tf.Tensor:
    return tf.constant(value, like.dtype)


def attention(q: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    return mask + tf.matmul(q, q, transpose_b=True) * number(q, 0.3)


def normalised(x: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
    scale = tf.cast(s, tf.float32)
    return v1.nn.fused_batch_norm(x, scale, scale, is_training=True)[0]


def by_rows(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """Layer normalisation as Keras 2 computes it."""
    shape = tf.shape(x)
    rows = shape[0] * shape[1]
    flat = tf.reshape(x, [1, rows, 16, 1])
    y, _, _ = v1.nn.fused_batch_norm(
        flat, tf.ones([rows]), tf.zeros([rows]), data_format="NCHW"
    )
    return tf.reshape(y, shape) * gamma + beta


def by_moments(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


CASES = cases()


def given(specs: Iterable[tf.TensorSpec]) -> list[tf.Tensor]:
    return [v1.placeholder(spec.dtype, spec.shape) for spec in specs]


# The ops that this is about, and the kernels that stand for one of them.
WATCHED = {
    *("BiasAdd", "AddV2", "Mul", "Relu", "Relu6", "Elu", "LeakyRelu"),
    *("Tanh", "Sigmoid", "Selu", "FusedBatchNormV3"),
}
STANDS_FOR = {"AddN": "AddV2", "RealDiv": "Mul", "_MklSwish": "Sigmoid"}
STANDS_FOR |= {
    "_FusedBatchNormEx": "FusedBatchNormV3",
    "_MklLayerNorm": "FusedBatchNormV3",
}


def watched(nodes: list[tuple[str, int]]) -> Counter[str]:
    """How many floating nodes there are of each op."""
    floats = {tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum}
    named = (STANDS_FOR.get(op, op) for op, number in nodes if number in floats)
    return Counter(op for op in named if op in WATCHED)


def optimised(
    fn: Fn, args: list[tf.Tensor], specs: list[tf.TensorSpec]
) -> Counter[str]:
    """What is left after TensorFlow's graph optimizers."""
    step = tf.function(fn, jit_compile=False, input_signature=specs)
    context_lib.enable_graph_collection()
    step(*args)
    metadata = context_lib.export_run_metadata()
    context_lib.disable_graph_collection()
    return watched(
        [
            (node.op, node.attr["T"].type)
            for graphs in metadata.function_graphs
            for node in graphs.post_optimization_graph.node
        ]
    )


@pytest.mark.skipif(not test_util.IsMklEnabled(), reason="no oneDNN")
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", CASES)
def test_this_tensorflow_merges_what_is_said_here(name: str, dtype: tf.DType) -> None:
    """The table's source, looked up again."""
    fn, specs = CASES[name]
    module = module_of(graph_def(lambda: fn(*given(specs))))
    context = context_of(module, A100 if GPUS else CPU)
    graph = module.main
    there = watched(
        [(n.op, *n.types("T")) for n in graph.nodes.values() if n.types("T")]
    )
    low = dtype is tf.bfloat16
    free = [one for one in epilogues(graph, context) if one.types[low]]
    left = there - watched([(graph.nodes[one.name].op, 1) for one in free])
    cast = [tf.TensorSpec(spec.shape, dtype) for spec in specs]
    sizes = [[2 if s is None else s for s in spec.shape] for spec in specs]
    args = [tf.ones(size, dtype) for size in sizes]
    found = optimised(fn, args, cast)
    assert Counter({op: found[op] for op in found & there}) == left


def test_every_chain_of_a_cpu_is_looked_up() -> None:
    """Some case has the ops of each of its nodes."""
    graphs = [
        graph_def(lambda one=one: one[0](*given(one[1]))) for one in CASES.values()
    ]
    present = [{node.op for node in graph.node} for graph in graphs]
    for chain in CHAINS:
        parts = (chain.first, *(step.ops for step in chain.steps))
        seen = any(all(part & ops for part in parts) for ops in present)
        assert seen or chain.device != "CPU", chain


@pytest.mark.parametrize("elementwise", [1.25, 3.0])
def test_a_merged_node_follows_its_product(elementwise: float) -> None:
    """Alone it is slower in 16 bits; merged it costs nothing in either type."""
    slow = {"bfloat16": {"elementwise": elementwise}}
    plan = planned(dataclasses.replace(CPU_AMX, slowdown=slow))
    assert {"product", "bias", "activation"} <= plan.low
    assert planned(CPU_AMX).seconds16 == pytest.approx(plan.seconds16)


def planned(device: Device, **fields: object) -> Plan:
    def build() -> None:
        y = layer()
        tf.matmul(y, v1.placeholder(tf.float32, [COLUMNS, COLUMNS]), name="next")

    module = module_of(graph_def(build))
    context = context_of(module, device, **{"assignment": "cost", **fields})
    return plan_of(module, context, CostModel(device, "bfloat16"))


def test_a_cast_in_a_chain_unmerges_all_that_follows_it() -> None:
    torn = planned(CPU_AMX, deny=("BiasAdd",), assignment="all")
    whole = planned(CPU_AMX, assignment="all")
    assert whole.low - torn.low == {"bias", "activation"}
    model = CostModel(CPU_AMX, "bfloat16")
    module = module_of(graph_def(layer))
    (one,) = priced_of(module, context_of(module, CPU_AMX), model).uses.values()
    # Both run as kernels, and what they take in and give out is cast; the bias is not.
    kernels = one.times["bias"][0] + one.times["activation"][0]
    casts = 2 * model.cast((ROWS, COLUMNS)) - model.cast((COLUMNS,))
    assert torn.seconds16 - whole.seconds16 == pytest.approx(kernels + casts)


def test_the_cut_pays_for_a_torn_chain_what_the_plan_says() -> None:
    """The cheaper of tearing it and of the whole in float32, by the plan's seconds."""
    gentle = dataclasses.replace(CPU_AMX, speed={"bfloat16": {"product": 1.01}})
    for device in (CPU_AMX, gentle):
        plan = planned(device, deny=("BiasAdd",))
        torn = planned(device, deny=("BiasAdd",), assignment="all").seconds16
        assert plan.seconds16 <= min(torn, plan.seconds32) * (1 + 1e-6)
