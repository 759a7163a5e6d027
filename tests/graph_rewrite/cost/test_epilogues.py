"""`epilogues`: what TensorFlow merges into a product is torn from it at a price."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import analysis_of, context_of, graph_def, module_of, plan_of, v1
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.candidates import context
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.epilogues import epilogues
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.ops import op_table
from amp.graph_rewrite.plan import Plan

CLOCK = CostModel(CPU_AMX, "bfloat16")
ROWS, COLUMNS = 512, 1024


def merged(build: Callable[[], object], **fields: object) -> set[str]:
    module = module_of(graph_def(build))
    (one,) = analysis_of(module, context_of(module, **fields)).uses.values()
    return set(epilogues(one.graph, one.found.typed, one.context))


def layer(activation: Callable[..., tf.Tensor] = tf.nn.relu) -> tf.Tensor:
    x = v1.placeholder(tf.float32, [ROWS, COLUMNS])
    w = v1.placeholder(tf.float32, [COLUMNS, COLUMNS])
    b = v1.placeholder(tf.float32, [COLUMNS])
    product = tf.matmul(x, w, name="product")
    return activation(tf.nn.bias_add(product, b, name="bias"), name="activation")


def test_a_bias_and_the_activation_after_it_are_merged() -> None:
    assert merged(layer) == {"bias", "activation"}
    assert merged(lambda: layer(tf.tanh)) == {"bias"}


def test_rows_say_on_which_devices_an_op_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relu = dataclasses.replace(op_table.facts("Relu"), epilogue_devices=("GPU",))
    monkeypatch.setattr(context, "TABLE", {**op_table.TABLE, "Relu": relu})
    assert merged(layer) == {"bias"}


def test_what_others_read_as_well_is_not_merged() -> None:
    def build() -> None:
        layer()
        graph = v1.get_default_graph()
        tf.abs(graph.get_tensor_by_name("product:0"))

    assert merged(build) == set()


def test_nothing_is_merged_under_xla_and_emulation() -> None:
    assert merged(layer, xla=True) == set()
    assert merged(layer, emulate=True) == set()


def test_this_tensorflow_merges_what_is_said_here() -> None:
    """The table's source, looked up again: in float32, which every CPU merges."""

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor, w: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))

    context_lib.enable_graph_collection()
    step(tf.ones([8, 8]), tf.ones([8, 8]), tf.ones([8]))
    metadata = context_lib.export_run_metadata()
    context_lib.disable_graph_collection()
    fused = [
        tuple(node.attr["fused_ops"].list.s)
        for graphs in metadata.function_graphs
        for node in graphs.post_optimization_graph.node
        if node.op == "_FusedMatMul"
    ]
    assert fused == [(b"BiasAdd", b"Relu")]


@pytest.mark.parametrize("elementwise", [1.25, 3.0])
def test_a_merged_node_follows_its_product(elementwise: float) -> None:
    """Alone it is slower in 16 bits; merged it costs nothing in either type."""
    slow = {"bfloat16": {"elementwise": elementwise}}
    plan = planned(Device(**{**fields(CPU_AMX), "slowdown": slow}))
    assert {"product", "bias", "activation"} <= plan.low
    assert planned(CPU_AMX).seconds16 == pytest.approx(plan.seconds16)


def fields(device: Device) -> dict[str, object]:
    return {name: getattr(device, name) for name in Device.__slots__}


def planned(device: Device) -> Plan:
    def build() -> None:
        y = layer()
        tf.matmul(y, v1.placeholder(tf.float32, [COLUMNS, COLUMNS]), name="next")

    module = module_of(graph_def(build))
    context = context_of(module, device, assignment="cost")
    return plan_of(module, context, CostModel(device, "bfloat16"))
