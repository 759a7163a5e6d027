"""Makes kernels of batch normalization that a program has written out.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.normalize.variable_reads import redirected
from amp.graph_rewrite.normalize.written_norms import (
    Norm,
    Values,
    elements_of_channel,
    norms,
)
from amp.graph_rewrite.ops import batch_norm
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.policy import Policy

_PLACES = "_class"  # of nodes that are to be on one device: "loc:@" and a node's name


def fuse_batch_norms(
    module: ir.Module, policy: Policy, differentiable: bool
) -> ir.Module:
    """Makes one node of each batch normalization by the batch's own moments::

        mean, variance = tf.nn.moments(x, [0, 1, 2])
        y = tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
        ->  y, mean, variance, ... = FusedBatchNormV3(x, scale, offset)

    and one, FusedBatchNormGradV3, of its gradient. Written out, as Keras 3 does it,
    they go 31 times through the data, in float32 whatever is around them, because a
    difference of rounded operands would lose what it is for; as kernels 9 times, on
    data that may be in 16 bits, with sums in float32.

    Both or none, in a function, where nothing else reads what is as large as the data
    (`ops.batch_norm` has the arithmetic), and the policy keeps no part in float32. Not
    under XLA, which takes the kernels apart again, and not where 16 bits are emulated:
    the program's own nodes are rounded then.

    Args:
      module: the module, calls inlined.
      policy: says whether 16 bits are emulated, and what is kept.
      differentiable: whether gradients may be taken of the result; all stays then.
    """
    if differentiable or policy.emulate:
        return module
    compiled = {use.name for use in calls.uses_with_weights(module) if use.xla}

    def fused(graph: ir.Graph) -> ir.Graph:
        # In a GraphDef, a session may fetch any tensor.
        apart = not graph.name or graph.name in compiled
        return graph if apart else _fused(graph, policy)

    functions = {name: fused(graph) for name, graph in module.functions.items()}
    return ir.Module(fused(module.main), functions)


def _fused(graph: ir.Graph, policy: Policy) -> ir.Graph:
    (last, *_) = batch_norm.PARTS
    if last.ops.isdisjoint(graph.ops):
        return graph
    # `tf.gradients` also makes gradients by what it stops, of which nothing comes.
    left = _without(graph, graph.nodes)
    used = graph if len(left) == len(graph.nodes) else graph.with_nodes(left)
    values, found, taken = Values(used), list[Norm](), set[str]()
    for name in [name for name, node in used.nodes.items() if node.op in last.ops]:
        one = next(norms(values, name), None)
        kept = one is None or any(_kept(used.nodes[n], policy) for n in one.names)
        if one is not None and not kept and taken.isdisjoint(one.names):
            taken |= one.names
            found.append(one)
    if not found:
        return graph
    made = _Made(values)
    for one in found:
        made.add(one)
    return made.graph(taken) or graph


def _kept(node: ir.Node, policy: Policy) -> bool:
    """Whether the policy says that a node stays as it is."""
    return node.op in policy.deny or policy.keeps(node.name)


class _Made:
    """A graph's nodes with kernels for batch normalizations and their gradients."""

    def __init__(self, values: Values) -> None:
        self._values, self._before = values, values.graph
        self._nodes = dict(values.graph.nodes)
        self._shapes: dict[ir.Edge, ir.Shape] = {}
        self._device = ""  # of what is added
        self._waited: dict[str, str] = {}  # the new node of each that others wait for
        self._same: dict[ir.Edge, ir.Edge] = {}  # the new edge of each that is replaced

    def add(self, one: Norm) -> None:
        """Adds the kernels for a batch normalization, and has what they give read."""
        found, shape = one.edges, self._before.shape(one.edges["x"])
        assert shape is not None
        self._device = one.adds.device
        y, by_data = self._kernels(one, shape)
        norm, gradient = y[0], by_data[0]
        if len(one.adds.inputs) == len(batch_norm.TERMS):
            self._same[one.adds.name, 0] = by_data
        else:
            self._add_up(one, by_data)
        vectors = {
            "mean": (norm, batch_norm.MEAN),
            "variance": self._variance(found["x"], norm, shape),
            "by_offset": (gradient, batch_norm.BY_OFFSET),
            batch_norm.BY_SCALE.name: (gradient, batch_norm.TO_SCALE),
        }
        self._same[found["y"]] = y
        self._waited[found["y"][0]] = norm
        for part, edge in vectors.items():
            if part in found:
                kept = self._before.shape(found[part])
                name = f"{found[part][0]}/amp_vector"
                self._same[found[part]] = self._reshaped(name, edge, kept)
        for part in batch_norm.LARGE:
            self._ask_data(found[part], found["x"])

    def graph(self, parts: Collection[str]) -> ir.Graph | None:
        """The graph without what nothing needs any more; None if that has a cycle.

        Args:
          parts: names of the nodes that computed parts.
        """
        before, shapes = self._before, self._shapes
        nodes = {name: self._waiting(node) for name, node in self._nodes.items()}
        made = redirected(before.with_nodes(nodes), self._same)
        made = made.with_nodes(_without(made, parts))

        def shaped(known: ir.ShapeSource) -> ir.ShapeSource:
            return lambda edge: shapes[edge] if edge in shapes else known(edge)

        # A scale that is computed from the moments would wait for itself.
        missing = len(made.nodes) - len(made.order)
        if missing and missing > len(before.nodes) - len(before.order):
            return None
        return made.with_shapes(shaped)

    def _waiting(self, node: ir.Node) -> ir.Node:
        """A node that waits for the new nodes in place of those that are replaced."""
        if self._waited.keys().isdisjoint(node.controls):
            return node
        controls = tuple(self._waited.get(name, name) for name in node.controls)
        return dataclasses.replace(node, controls=controls, pristine=False)

    def _kernels(self, one: Norm, shape: ir.Shape) -> tuple[ir.Edge, ir.Edge]:
        """Adds both kernels; returns the result, and the gradient by the data.

        Args:
          one: what they compute.
          shape: of the data.
        """
        found, vector = one.edges, (shape or ())[-1:]
        y, gradient = (f"{found[p][0]}/amp_norm" for p in ("y", "direct"))
        attrs: dict[str, ir.Value] = {
            "T": ir.Type(ir.FLOAT),
            "U": ir.Type(ir.FLOAT),
            "epsilon": one.epsilon,
        }
        nothing = self._constant(f"{y}_nothing", np.zeros([0]))
        scale = found.get("scale")
        if scale is None:
            scale = self._constant(f"{y}_ones", np.ones(vector))
        scale = self._vector(f"{y}_scale", scale)
        offset = self._vector(f"{y}_offset", found["offset"])
        inputs = (found["x"], scale, offset, nothing, nothing)
        outs = (shape, *(vector for _ in range(4)), None)
        passes = {ir.PASSES: batch_norm.PASSES_FORWARD}
        result = self._add(y, batch_norm.FUSED, inputs, {**attrs, **passes}, outs)
        reserved = tuple((y, index) for index in batch_norm.RESERVED)
        given = (found["dy"], found["x"], scale, *reserved)
        outs = (shape, vector, vector, (0,), (0,))
        passes = {ir.PASSES: batch_norm.PASSES_BACKWARD}
        op = batch_norm.FUSED_GRADIENT
        return result, self._add(gradient, op, given, {**attrs, **passes}, outs)

    def _add(
        self,
        name: str,
        op: str,
        inputs: tuple[ir.Edge, ...],
        attrs: Mapping[str, ir.Value],
        shapes: Sequence[ir.Shape],
    ) -> ir.Edge:
        """Adds a node, with the shapes of its outputs; returns its first output."""
        self._nodes[name] = ir.Node(name, op, inputs, (), self._device, None, attrs)
        for index, shape in enumerate(shapes):
            self._shapes[name, index] = shape
        return name, 0

    def _constant(self, name: str, values: Any, number: int = ir.FLOAT) -> ir.Edge:
        value = ir.Tensor(np.asarray(values), number)
        attrs: dict[str, ir.Value] = {"value": value, "dtype": ir.Type(number)}
        return self._add(name, "Const", (), attrs, (np.shape(values),))

    def _vector(self, name: str, edge: ir.Edge) -> ir.Edge:
        """An edge, reshaped to one dimension if it has more."""
        shape = self._before.shape(edge) or ()
        return edge if len(shape) < 2 else self._reshaped(name, edge, shape[-1:])

    def _reshaped(self, name: str, edge: ir.Edge, shape: ir.Shape) -> ir.Edge:
        sizes = self._constant(f"{name}_shape", shape, ir.INT32)
        types = {"T": ir.Type(ir.FLOAT), "Tshape": ir.Type(ir.INT32)}
        return self._add(name, "Reshape", (edge, sizes), types, (shape,))

    def _variance(self, x: ir.Edge, y: str, shape: ir.Shape) -> ir.Edge:
        """The mean of N squared deviations, of which the kernel divides by N - 1."""
        number = {"T": ir.Type(ir.FLOAT)}
        if shape is not None and -1 not in shape:
            count = elements_of_channel(shape)
            left = self._constant(f"{y}_left", (count - 1) / count)
        else:
            # In 32 bits it would refuse a tensor of 2^31 elements.
            types = {**number, "out_type": ir.Type(ir.INT64)}
            size = self._add(f"{y}_size", "Size", (x,), types, ((),))
            ends = {"SrcT": ir.Type(ir.INT64), "DstT": ir.Type(ir.FLOAT)}
            size = self._add(f"{y}_elements", "Cast", (size,), ends, ((),))
            channels = self._constant(f"{y}_channels", (shape or (1,))[-1])
            part = self._add(f"{y}_part", "RealDiv", (channels, size), number, ((),))
            one = self._constant(f"{y}_one", 1.0)
            left = self._add(f"{y}_left", "Sub", (one, part), number, ((),))
        inputs = ((y, batch_norm.VARIANCE), left)
        vector = (shape or ())[-1:]
        return self._add(f"{y}_variance", "Mul", inputs, number, (vector,))

    def _add_up(self, one: Norm, edge: ir.Edge) -> None:
        """Has the gradient by the data added to what else there is."""
        terms = {one.edges[term] for term in batch_norm.TERMS}
        own = self._values.own
        others = [each for each in one.adds.inputs if own(each) not in terms]
        inputs = (*others, edge)
        self._nodes[one.adds.name] = one.adds.changed(inputs, {"N": len(inputs)})

    def _ask_data(self, part: ir.Edge, data: ir.Edge) -> None:
        """Has what asks for the shape of a part ask for that of the data."""
        for name, _ in self._before.readers.get(part, ()):
            node = self._nodes[name]
            if facts(node.op).kind is Kind.SHAPE:
                inputs = (data if edge == part else edge for edge in node.inputs)
                self._nodes[name] = node.changed(tuple(inputs))


def _without(graph: ir.Graph, parts: Collection[str]) -> dict[str, ir.Node]:
    """The nodes without those that nothing needs: of parts, and of what they read."""
    left = dict(graph.nodes)
    needs = dict.fromkeys(graph.control_results, 1)
    for source in (result.edge[0] for result in graph.results):
        needs[source] = needs.get(source, 0) + 1
    for node in left.values():
        for source, _ in node.inputs:
            needs[source] = needs.get(source, 0) + 1
        for source in node.controls:
            needs[source] = needs.get(source, 0) + 1

    def free(name: str) -> bool:
        return not needs.get(name) and not op_schema.is_stateful(left[name].op)

    pending = [name for name in parts if free(name)]
    while pending:
        gone = left.pop(pending.pop(), None)
        for source in () if gone is None else gone.sources:
            needs[source] -= 1
            if source in left and free(source):
                pending.append(source)
    gone_places = {f"loc:@{name}" for name in graph.nodes.keys() - left.keys()}
    placed = [node for node in left.values() if node.has(_PLACES)]
    for node in placed if gone_places else ():
        places = node.strings(_PLACES)
        if not gone_places.isdisjoint(places):
            stay = tuple(place for place in places if place not in gone_places)
            left[node.name] = node.changed(updates={_PLACES: ir.Strings(stay)})
    return left
