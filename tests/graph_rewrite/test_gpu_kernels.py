"""Every kernel that a twin needs and its original did not is registered.

TensorFlow's registry tells without a GPU, but only a build for GPUs lists its kernels:
`make test-gpu-kernels` has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import plan_digest
import pytest
from rewriting import CPU, settled
from tensorflow.python.framework import kernels

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import calls, ir, op_schema
from models import mlp


def registered(device_type: str) -> bool:
    found = kernels.get_registered_kernels_for_op("MatMul").kernel
    return any(kernel.device_type == device_type for kernel in found)


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


def types(node: ir.Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    known = op_schema.schema(node.op)
    assert known is not None
    return tuple((attr, node.types(attr)) for attr in sorted(known.allowed))


def missing(module: ir.Module, device: Device, **fields: object) -> set[str]:
    """The ops, with their types, that a twin has no kernel for on a device type."""
    twin = rewrite_lib.rewrite(module, settled(device, **fields)).graph
    before = {(node.op, types(node)) for node in nodes(module)}
    added = {(n.op, types(n)): n for n in nodes(twin)}
    assert added.keys() - before, "the twin is the original"
    return {
        f"{op} {dict(given)}"
        for (op, given), node in added.items()
        if (op, given) not in before
        and "CPU:" not in node.device.upper()
        and not op_schema.has_kernel(node, device.kind, {})
    }


@pytest.mark.parametrize("emulate", [False, True])
def test_a_cpu_has_every_kernel_that_a_twin_adds(emulate: bool) -> None:
    module = plan_digest.traced(mlp, xla=False)
    assert missing(module, CPU, emulate=emulate) == set()


@pytest.mark.gpu_kernels
@pytest.mark.skipif(not registered("GPU"), reason="TensorFlow built without a GPU's")
@pytest.mark.parametrize("model", plan_digest.MODELS, ids=lambda m: m.__name__)
def test_a_gpu_has_every_kernel_that_a_twin_adds(model: ModuleType) -> None:
    module = plan_digest.traced(model, xla=False)
    for assignment in ("cost", "all"):
        for dtype in ("float16", "bfloat16"):
            fields = {"assignment": assignment, "dtype": dtype}
            assert missing(module, A100, **fields) == set()
    assert missing(module, A100, dtype="float16", emulate=True) == set()
