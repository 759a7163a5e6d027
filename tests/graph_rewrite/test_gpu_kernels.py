"""Every kernel that a twin or loss scaling needs, and the job did not, is registered.

TensorFlow's registry tells without a GPU, but only a build for GPUs lists its kernels:
`make test-gpu-kernels` has one. On any build the same is asked of the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TypeAlias

import plan_digest
import pytest
import tensorflow as tf
from rewriting import CPU, module_of, settled, v1
from tensorflow.python.framework import kernels

import amp
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.graph import calls, ir, op_schema
from models import mlp

Kind: TypeAlias = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]

# The models are small ones of their kind: were it not for the launch of a kernel, the
# cost model would choose for them as for large ones.
GPUS = [
    dataclasses.replace(device, launch=0.0)
    for device in vars(shipped_devices).values()
    if isinstance(device, Device) and device.kind == "GPU"
]


def registered(device_type: str) -> bool:
    found = kernels.get_registered_kernels_for_op("MatMul").kernel
    return any(kernel.device_type == device_type for kernel in found)


ASKS_GPU = [
    pytest.mark.gpu_kernels,
    pytest.mark.skipif(
        not registered("GPU"), reason="TensorFlow built without a GPU's"
    ),
]
ON_GPU = pytest.param("GPU", marks=ASKS_GPU)


def nodes(module: ir.Module) -> Iterator[ir.Node]:
    """What runs as kernels: not what XLA compiles, nor calls by a function's name."""
    for use in calls.uses_with_weights(module):
        if not use.xla:
            graph = calls.graph_of(module, use)
            yield from (
                node
                for node in graph.nodes.values()
                if op_schema.schema(node.op) is not None
            )


def compiled(module: ir.Module) -> Iterator[ir.Node]:
    """What XLA compiles."""
    for use in calls.uses_with_weights(module):
        if use.xla:
            yield from calls.graph_of(module, use).nodes.values()


def kinds(found: Iterable[ir.Node]) -> dict[Kind, ir.Node]:
    """A node of each op and types; those placed on the CPU need no other kernel."""
    return {
        (node.op, types(node)): node
        for node in found
        if "CPU:" not in node.device.upper()
    }


def types(node: ir.Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    known = op_schema.schema(node.op)
    assert known is not None
    return tuple((attr, node.types(attr)) for attr in sorted(known.allowed))


def missing(added: Iterable[ir.Node], device_type: str) -> set[str]:
    return {
        f"{node.op} {dict(types(node))}"
        for node in added
        if not op_schema.has_kernel(node, device_type, {})
    }


def added(module: ir.Module, device: Device, **fields: object) -> dict[Kind, ir.Node]:
    """What a twin has, by op and types, and its original has not."""
    before = kinds(nodes(module))
    after = kinds(nodes(rewrite_lib.rewrite(module, settled(device, **fields)).graph))
    return {kind: node for kind, node in after.items() if kind not in before}


@pytest.mark.parametrize("emulate", [False, True])
def test_a_cpu_has_every_kernel_that_a_twin_adds(emulate: bool) -> None:
    found = added(plan_digest.traced(mlp, xla=False), CPU, emulate=emulate)
    assert found
    assert missing(found.values(), "CPU") == set()


@pytest.mark.gpu_kernels
@pytest.mark.skipif(not registered("GPU"), reason="TensorFlow built without a GPU's")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("model", plan_digest.MODELS, ids=lambda m: m.__name__)
def test_a_gpu_has_every_kernel_that_a_twin_adds(model: ModuleType) -> None:
    module = plan_digest.traced(model, xla=False)
    for dtype in ("float16", "bfloat16"):
        whole = added(module, shipped_devices.A100, dtype=dtype)
        assert whole, "the twin is the original"
        assert missing(whole.values(), "GPU") == set()
        for device in GPUS:
            chosen = added(module, device, dtype=dtype, assignment="cost")
            assert missing(chosen.values(), "GPU") == set()
    emulated = added(module, shipped_devices.A100, dtype="float16", emulate=True)
    assert emulated
    assert missing(emulated.values(), "GPU") == set()


@pytest.mark.parametrize("device_type", ["CPU", ON_GPU])
def test_every_kernel_that_loss_scaling_adds_is_there(device_type: str) -> None:
    plain = kinds(nodes(plan_digest.traced(mlp, xla=False, scaled=False)))
    scaled = kinds(nodes(plan_digest.traced(mlp, xla=False)))
    ops = {op for op, _ in scaled.keys() - plain.keys()}
    assert {"AssignAddVariableOp", "AssignVariableOp", "IsFinite"} <= ops
    found = [scaled[kind] for kind in scaled.keys() - plain.keys()]
    assert missing(found, device_type) == set()


@pytest.mark.parametrize(
    "device_type", ["XLA_CPU_JIT", pytest.param("XLA_GPU_JIT", marks=ASKS_GPU)]
)
@pytest.mark.parametrize("model", plan_digest.COMPILED, ids=lambda m: m.__name__)
def test_xla_has_every_kernel_of_a_step_that_it_compiles(
    model: ModuleType, device_type: str
) -> None:
    tf.function(tf.abs, jit_compile=True)(tf.ones([2]))  # XLA registers its kernels
    module = plan_digest.traced(model, xla=True)
    given = settled(shipped_devices.A100, dtype="float16")
    twin = list(compiled(rewrite_lib.rewrite(module, given).graph))
    assert {"Cast", "AssignAddVariableOp", "IsFinite"} <= {node.op for node in twin}
    known = [node for node in twin if op_schema.schema(node.op) is not None]
    assert missing(known, device_type) == set()


def descent(scaled: bool) -> tf.compat.v1.GraphDef:
    """A session's training step, built on a GPU, whose placement is not soft."""
    with tf.Graph().as_default() as graph, tf.device("/device:GPU:0"):
        w = v1.get_variable("w", [8, 8], use_resource=True)
        if scaled:
            amp.enable(dtype="float16")
        loss = tf.reduce_mean(tf.square(tf.matmul(w, w)))
        v1.train.AdamOptimizer(1e-3).minimize(loss)
    amp.disable()
    return graph.as_graph_def()


@pytest.mark.parametrize("device_type", ["CPU", ON_GPU])
def test_so_is_what_it_adds_to_a_sessions_graph(device_type: str) -> None:
    plain, scaled = (module_of(descent(scaled)) for scaled in (False, True))
    known = kinds(nodes(plain))
    found = [n for kind, n in kinds(nodes(scaled)).items() if kind not in known]
    assert "AssignAddVariableOp" in {node.op for node in found}
    assert missing(found, device_type) == set()


def test_a_sessions_scaler_stands_where_its_variables_do() -> None:
    graph = module_of(descent(scaled=True)).main
    handles = [node for node in graph.nodes.values() if node.op == "VarHandleOp"]
    scalers = [node for node in handles if "amp_loss_scale" in node.name]
    assert scalers
    assert {node.device for node in scalers} == {"/device:GPU:0"}
    assert ir.INT32 not in {number for n in scalers for number in n.types("dtype")}
