"""Convolutions with a filter that is fixed: a blur, the window of a local mean.

They are weighted means of their operand, where others have learned their weights. One
function at a time; nothing is refused here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir, op_schema, rounding, shapes
from amp.graph_rewrite.ops.op_table import Kind

_WORK = frozenset({"conv", "depthwise", "depthwise_grad_input", "conv_grad_input"})
_DEPTHWISE = frozenset({"depthwise", "depthwise_grad_input"})
_FILTER = frozenset({"conv_grad_filter", "depthwise"})  # of a gradient by a filter
_KNOWN = frozenset({Kind.CONSTANT, Kind.SHAPE})


def weighted_means(
    graph: ir.Graph, typed: Mapping[str, Typed], given: Collection[str] = ()
) -> dict[str, ir.Edge]:
    """The convolutions with fixed filters, and their gradients, each with its filter.

    A filter is fixed if it is computed from constants and shapes alone. The weights of
    a frozen model are constants too, but hardly without any that is negative: so a
    filter that is written down as numbers has none that is. What is computed of
    numbers (a Gaussian) is taken for a filter whatever they are.

    So is a tensor that was made outside of the function and is but moved, if it filters
    each channel alone: a program may keep its weights in no variables, and those mix
    channels. Not if a gradient by it is taken.

    Args:
      graph: one function.
      typed: its nodes.
      given: the arguments that hold such tensors, by name.
    """
    found: dict[str, ir.Edge] = {}
    if _WORK.isdisjoint(view.facts.work for view in typed.values()):
        return found
    # What is fixed: whether it may be a filter.
    fixed: dict[str, bool] = dict.fromkeys(given, True)
    outside = set(given)  # and what that is moved to
    learned = _learned(graph, typed) if given else frozenset()
    for name in graph.order:
        view = typed[name]
        if view.facts.kind in _KNOWN:
            fixed[name] = view.facts.kind is Kind.SHAPE or _is_positive(view.node)
            continue
        sources = [edge[0] for edge in view.node.inputs]
        convolves = view.facts.work in _WORK
        if not convolves and sources and all(source in fixed for source in sources):
            if not outside.isdisjoint(sources):
                if not view.facts.moves:
                    continue
                outside.add(name)
            if not op_schema.is_stateful(view.node.op):
                fixed[name] = _hands_on(view, fixed)
        elif convolves and (number := view.facts.weights.numbers[0]):
            edge = view.node.inputs[number]
            if view.ins[number].type not in ir.FLOATS or not fixed.get(edge[0]):
                continue
            if edge[0] not in outside or (
                edge not in learned and _is_window(view, graph.shape(edge))
            ):
                found[name] = edge
    return found


def _is_window(view: Typed, shape: ir.Shape) -> bool:
    """Whether a filter of this shape has a neighbourhood, and mixes no channels."""
    if shape is None or len(shape) < 3 or shapes.elements(shape[:-2]) <= 1:
        return False
    alone = shape[-1] == 1 and view.facts.work in _DEPTHWISE
    return alone or tuple(shape[-2:]) == (1, 1)


def _learned(graph: ir.Graph, typed: Mapping[str, Typed]) -> frozenset[ir.Edge]:
    """The filters by which a gradient is taken: of what that reads, too.

    TensorFlow makes one for every filter; it is taken where something reads it.
    """
    results = {result.edge for result in graph.results}
    read = {
        view.node.inputs[0]
        for name, view in typed.items()
        if view.facts.work in _FILTER
        and view.ins[1].type in ir.INTEGERS
        and ((name, 0) in graph.readers or (name, 0) in results)
    }
    return frozenset(
        view.node.inputs[1]
        for view in typed.values()
        if view.facts.work in _WORK and view.node.inputs[0] in read
    )


def _hands_on(view: Typed, fixed: Mapping[str, bool]) -> bool:
    """Whether what a node makes of fixed values may be a filter."""
    if not view.facts.moves:
        return True
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return all(fixed[edge[0]] for edge, slot in pairs if slot.type in ir.FLOATS)


def _is_positive(node: ir.Node) -> bool:
    """Whether no number of a constant is negative, and not all of them are 0."""
    values = node.tensor()
    if values is None or values.dtype.kind != "f":
        return True
    values = rounding.distinct(values)
    return bool(values.size and np.min(values) >= 0 and np.max(values) > 0)
