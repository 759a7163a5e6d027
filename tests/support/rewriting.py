"""What the rewriter's tests share: making graphs, rewriting them, running them.

No test lives here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.candidates.analysis import Analysis, analyze
from amp.graph_rewrite.candidates.context import FORMATS, Context
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import Priced, price
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.plan import Plan
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Rewrite
from amp.integration.runtime import definitions
from amp.policy import Policy

GraphDef = tf.compat.v1.GraphDef
v1 = tf.compat.v1
# A CPU that has arithmetic in both types: kernels are asked for, nothing costs more.
CPU = dataclasses.replace(
    shipped_devices.CPU_PLAIN,
    native=("bfloat16", "float16"),
    slowdown={},
    speed={},
)
# One on which 16 bits pay however small a product is, so that plans by cost have some.
PAYING = dataclasses.replace(
    CPU,
    launch=0.0,
    flops=1e9,
    speed={dtype: {"product": 8.0} for dtype in CPU.native},
)


def graph_def(build: Callable[[], object]) -> GraphDef:
    """The GraphDef of what `build` builds."""
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def shapes_of(proto: GraphDef) -> ir.ShapeSource:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(proto, name="")

    def shape(edge: ir.Edge) -> ir.Shape:
        operation = graph.get_operation_by_name(edge[0])
        return definitions.dimensions(operation.outputs[edge[1]].shape)

    return shape


def module_of(proto: GraphDef) -> ir.Module:
    """A GraphDef as the rewriter reads it, with its static shapes."""
    return serde.read_graph(proto, shapes_of(proto))


def settled(device: Device = CPU, **fields: Any) -> Resolution:
    """A policy (bfloat16, every candidate, and what `fields` say) on a device."""
    chosen = {"dtype": "bfloat16", "assignment": "all", "min_gain": 0.0}
    fields = chosen | fields
    return resolution.resolve(Policy(**fields), device)


def context_of(
    module: ir.Module, device: Device = CPU, xla: bool = False, **fields: Any
) -> Context:
    """What decisions on a module's main graph depend on."""
    resolution = settled(device, **fields)
    assert resolution.policy is not None
    return Context(
        policy=resolution.policy,
        format=FORMATS[resolution.policy.dtype],
        device_type=resolution.device.kind,
        native=resolution.policy.dtype in resolution.device.native,
        xla=xla,
        behind=frozenset(),
        updates=frozenset(),
        fed=frozenset(),
        fetched=frozenset(),
        lookup=op_schema.lookup_of(module),
    )


def analysis_of(module: ir.Module, context: Context) -> Analysis:
    """What is known of a module, every use of a function in one context."""
    return analyze(module, lambda use: context)


def priced_of(module: ir.Module, context: Context, cost_model: CostModel) -> Priced:
    """A module's analysis with its prices, every use by one cost model."""
    return price(analysis_of(module, context), lambda use: cost_model)


def plan_of(module: ir.Module, context: Context, cost_model: CostModel) -> Plan:
    """The plan for the main graph of a module."""
    return next(iter(decide(priced_of(module, context, cost_model)).values()))


def rewritten(
    proto: GraphDef,
    device: Device = CPU,
    *,
    fetches: Iterable[str] = (),
    feeds: Iterable[str] = (),
    **fields: Any,
) -> Rewrite:
    """`amp.rewrite` as on another device; without fetches, the ends are fetched."""
    module = module_of(proto)
    read = {edge[0] for edge in module.main.readers}
    ends = frozenset(module.main.nodes.keys() - read)
    result = rewrite_lib.rewrite(
        module,
        settled(device, **fields),
        fetches=frozenset(fetches) or ends,
        feeds=frozenset(feeds),
    )
    return Rewrite(serde.write_graph(result.graph), result.report)


def decisions(report: Report) -> dict[str, Decision]:
    return {decision.node: decision for decision in report.decisions}


def low(report: Report) -> set[str]:
    """The nodes that a report says are held in 16 bits."""
    return {d.node for d in report.decisions if d.dtype not in ("float32", "")}


def rules(report: Report) -> dict[str, str]:
    return {d.node: d.rule for d in report.decisions}


def nodes(proto: GraphDef) -> dict[str, Any]:
    return {node.name: node for node in proto.node}


def casts(proto: GraphDef) -> list[Any]:
    return [node for node in proto.node if node.op == "Cast"]


def run(
    proto: GraphDef, fetches: Iterable[str], feeds: Mapping[str, Any] | None = None
) -> list[np.ndarray]:
    """The tensors `fetches` as a session gives them; variables are initialised."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(proto, name="")
        if "init" in nodes(proto):
            session.run("init")
        names = [name if ":" in name else f"{name}:0" for name in fetches]
        given = {f"{name}:0": value for name, value in (feeds or {}).items()}
        return session.run(names, given)


def traced(fn: Any, *args: Any) -> tuple[ir.Module, Any]:
    """The module that a function is when traced with `args`, and its trace."""
    function = fn if hasattr(fn, "get_concrete_function") else tf.function(fn)
    concrete = function.get_concrete_function(*args)
    return definitions.read(context_lib.context(), concrete.name), concrete


def spec(*shape: int | None, dtype: Any = tf.float32) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype)


def matmul_chain() -> None:
    """x [8, 16] by w, tanh, reshaped to "out": the smallest graph with each role."""
    x = v1.placeholder(tf.float32, [8, 16], name="x")
    w = tf.constant(np.ones([16, 16], np.float32) / 7, name="w")
    y = tf.matmul(x, w, name="product")
    tf.reshape(tf.tanh(y, name="tanh"), [16, 8], name="out")
