"""Finds convolutions that XLA compiles alone, so that they can be kernels instead.

Changes structure only: no types, no cost. They are taken out of their functions by
`inline`, not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import MUST_COMPILE
from amp.graph_rewrite.normalize.inline import is_inlinable
from amp.graph_rewrite.ops.arithmetic import CONVOLUTIONS
from amp.graph_rewrite.ops.op_table import Kind, facts

_BESIDE = frozenset(
    {Kind.CONSTANT, Kind.IDENTITY, Kind.NOTHING, Kind.READ_VARIABLE, Kind.SHAPE}
)
_APART = frozenset({MUST_COMPILE, "_noinline"})  # keep a function apart from its caller


def open_lone_convolutions(
    module: ir.Module, onednn: bool, differentiable: bool
) -> ir.Module:
    """Lets functions be inlined that XLA compiles and that only convolve.

    Keras has XLA compile each grouped convolution by itself, as TensorFlow's own
    kernels on CPUs have no gradients with groups. oneDNN's, which take their place, do.
    They are many times as fast: 8 images of 16 by 16 with 96 channels, each of a group
    of its own, and windows of 7 by 7 take 13.9 ms by XLA and 0.4 by oneDNN on two cores
    (EPYC with AVX512-BF16, TensorFlow 2.21), in bfloat16 14.0 and 0.4.

    Args:
      module: the module, before it is inlined.
      onednn: whether it is certain that oneDNN's kernels are used.
      differentiable: whether gradients may be taken of the result; all stays then, as
        TensorFlow makes them.
    """
    if differentiable or not onednn:
        return module
    opened = {
        name: _opened(graph)
        for name, graph in module.functions.items()
        if MUST_COMPILE in graph.flags and _only_convolves(graph)
    }
    for name in _called_apart(module, opened):
        del opened[name]
    if not opened:
        return module

    def calling(graph: ir.Graph) -> ir.Graph:
        without = {
            node.name: _without_xla(node)
            for node in graph.nodes.values()
            if node.flag(MUST_COMPILE) and opened.keys() & {*node.functions("f")}
        }
        return graph.with_nodes({**graph.nodes, **without}) if without else graph

    functions = {name: calling(graph) for name, graph in module.functions.items()}
    return ir.Module(calling(module.main), {**functions, **opened})


def _called_apart(module: ir.Module, opened: Mapping[str, ir.Graph]) -> set[str]:
    """Those of some functions of which a call is not inlined, opened as they are."""
    apart = set()
    for graph in module.graphs() if opened else ():
        for node in graph.nodes.values():
            call = calls.call_of(node, module.functions)
            named = set() if call is None else {*calls.callees_of(node, call)}
            if named.isdisjoint(opened):
                continue
            once = graph.name and calls.calls_once(node.op)
            if not once or not is_inlinable(_without_xla(node), False, opened):
                apart |= named & opened.keys()
    return apart


def _without_xla(node: ir.Node) -> ir.Node:
    return node.changed(updates={MUST_COMPILE: False})


def _only_convolves(graph: ir.Graph) -> bool:
    """Whether it convolves as oneDNN does whatever the CPU, and does nothing else."""
    nodes = graph.nodes.values()
    rest = [node for node in nodes if not _convolves(node)]
    known = len(rest) < len(nodes) and all(facts(n.op).kind in _BESIDE for n in rest)
    return known and all(_is_tried(node) for node in nodes if _convolves(node))


def _convolves(node: ir.Node) -> bool:
    return facts(node.op).work in CONVOLUTIONS


def _is_tried(node: ir.Node) -> bool:
    """Whether a convolution was tried: of images in float32, channels last.

    TensorFlow keeps those in float64 from oneDNN.
    """
    usual = node.text("padding") in ("SAME", "VALID")
    last = node.text("data_format") == "NHWC"
    return last and usual and node.types("T") == (ir.FLOAT,)


def _opened(graph: ir.Graph) -> ir.Graph:
    nodes = {
        name: node.changed(updates={ir.ALONE: True}) if _convolves(node) else node
        for name, node in graph.nodes.items()
    }
    return dataclasses.replace(
        graph.with_nodes(nodes),
        flags=graph.flags - _APART,
        attributes=graph.attributes - _APART,
    )
