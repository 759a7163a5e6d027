"""Finds batch normalizations, with their gradients, that a program has written out.

`ops.batch_norm` has the arithmetic; a match is a node for each of its parts. Nothing is
changed here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops import batch_norm
from amp.graph_rewrite.ops.batch_norm import Part
from amp.graph_rewrite.ops.op_table import Kind, Role, facts

_MARKS = (ir.KEEP, ir.UNSCALE, ir.SEED)
_ALL_BUT_CHANNELS = (0, 1, 2)  # axes of the data, NHWC
_RANK = len(_ALL_BUT_CHANNELS) + 1
Found = dict[str, ir.Edge]  # edges by the names of the values


class Values:
    """What the edges of a graph stand for, whatever shape they are in.

    A vector of the channels stands for itself where it is reshaped, to ones and the
    channels, or repeated along the other axes: read beside the data, it gives the same.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._own: dict[ir.Edge, ir.Edge] = {}
        # What waits for a node; the function's end, "", for a control result.
        self.awaiting = {name: {""} for name in graph.control_results}
        for node in graph.nodes.values():
            for source in node.controls:
                self.awaiting.setdefault(source, set()).add(node.name)

    def own(self, edge: ir.Edge) -> ir.Edge:
        """The edge that one stands for: itself, or what it hands on."""
        found = self._own.get(edge)
        if found is None:
            node = self.graph.nodes.get(edge[0])
            handed = node is not None and self._hands_on(node)
            found = self.own(node.inputs[0]) if node and handed else edge
            self._own[edge] = found
        return found

    def data(self, edge: ir.Edge) -> ir.Edge:
        """The same of data, which a kernel needs in their own shape."""
        node = self.graph.nodes.get(edge[0])
        same = node is not None and not node.controls and _is_identity(node)
        return self.data(node.inputs[0]) if node and same else edge

    def _hands_on(self, node: ir.Node) -> bool:
        if node.controls or not node.inputs:
            return False
        if _is_identity(node):
            return True
        row = facts(node.op)
        before, after = self.channels(node.inputs[0]), self.graph.shape((node.name, 0))
        if not before:
            return False
        if node.op in batch_norm.REPEATS:
            return after is not None and len(after) == 4 and after[-1] == before
        same = row.role is Role.MOVE and row.work == "free"
        return same and self.channels((node.name, 0)) == before

    def channels(self, edge: ir.Edge) -> int:
        """The length of a vector along the last axis, 0 for anything else."""
        shape = self.graph.shape(edge)
        if not shape or shape[-1] < 1 or any(size != 1 for size in shape[:-1]):
            return 0
        return shape[-1]

    def readers(self, edge: ir.Edge) -> Iterator[ir.Node]:
        """The nodes that read an edge, or one that stands for it."""
        for name, _ in self.graph.readers.get(edge, ()):
            node = self.graph.nodes[name]
            if self.own((name, 0)) == self.own(edge) != (name, 0):
                yield from self.readers((name, 0))
            else:
                yield node

    def number(self, edge: ir.Edge) -> Any:
        """The value of a constant, None for anything else."""
        node = self.graph.nodes.get(edge[0])
        constant = node is not None and facts(node.op).kind is Kind.CONSTANT
        return node.tensor() if node is not None and constant else None

    def integers(self, edge: ir.Edge) -> Any:
        """The numbers that constants come to, None if they are not known."""
        node = self.graph.nodes.get(edge[0])
        combine = None if node is None else batch_norm.ARITHMETIC.get(node.op)
        if node is None or combine is None:
            return self.number(edge)
        given = [self.integers(source) for source in node.inputs]
        return None if any(one is None for one in given) else combine(*given)


def _is_identity(node: ir.Node) -> bool:
    return facts(node.op).kind in (Kind.IDENTITY, Kind.STOP_GRADIENT)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A batch normalization and its gradient.

    Attributes:
      edges: of the values by their names, those of `PARTS` and what they read.
      adds: the node that adds up the gradient by the data.
      names: of the nodes that compute parts, `adds` among them.
      epsilon: as it is added to the variance.
    """

    edges: Found
    adds: ir.Node
    names: frozenset[str]
    epsilon: float


def norms(values: Values, last: str) -> Iterator[Norm]:
    """The batch normalizations whose last vector a node computes; one or none."""
    whole = batch_norm.PARTS
    for parts in (whole, batch_norm.unscaled(whole)):
        start: Found = {parts[0].name: (last, 0)}
        for found in _matches(values, parts, start):
            one = _norm(values, parts, found)
            if one is not None:
                yield one


def _matches(values: Values, parts: Sequence[Part], found: Found) -> Iterator[Found]:
    """All ways to find parts in a graph, given those found before."""
    if not parts:
        yield found
        return
    part, *rest = parts
    for node in _candidates(values, part, found):
        for reads in (part.reads, part.reads[::-1])[: 2 if part.swaps else 1]:
            more = _unified(values, node, reads, found)
            if more is not None:
                yield from _matches(values, rest, {**more, part.name: (node.name, 0)})


def _candidates(values: Values, part: Part, found: Found) -> list[ir.Node]:
    """The nodes that may compute a part: the one that is read, or that read one."""
    nodes = values.graph.nodes
    if part.name in found:
        node = nodes.get(found[part.name][0])
        return [node] if node is not None and node.op in part.ops else []
    known = next(found[read] for read in part.reads if read in found)
    readers = {node.name: node for node in values.readers(known)}
    return [node for node in readers.values() if node.op in part.ops]


def _unified(
    values: Values, node: ir.Node, reads: Sequence[str], found: Found
) -> Found | None:
    """What is found if a node reads the values of these names, None if it does not."""
    if len(node.inputs) != len(reads) or node.types("T") not in ((), (ir.FLOAT,)):
        return None
    more = dict(found)
    for read, edge in zip(reads, node.inputs, strict=True):
        data = read in batch_norm.DATA
        own = values.data(edge) if data else values.own(edge)
        if more.setdefault(read, own) != own:
            return None
        # Most are of another rank, and need not be looked at any further.
        if data and len(values.graph.shape(own) or ()) != _RANK:
            return None
    return more


def _norm(values: Values, parts: Sequence[Part], found: Found) -> Norm | None:
    """What was found, if the kernels compute that and may stand for it."""
    graph = values.graph
    data = graph.shape(found["x"])
    channels = data[-1] if data else 0
    # `direct` is added to what has the shape of the data, so `dy` has it at every call.
    epsilon = values.number(found["epsilon"])
    if channels < 1 or graph.shape(found["dy"]) != data:
        return None
    if 0 in (data or ()):  # moments of none, whose number divides
        return None
    if epsilon is None or np.ndim(epsilon) or epsilon < 0.0:
        return None
    vectors = (found["mean"], found["offset"], found.get("scale", found["offset"]))
    if any(values.channels(edge) != channels for edge in vectors):
        return None
    if not all(_is_axes(values, found[name], data) for name in batch_norm.AXES):
        return None
    if not all(_counts(values, found[name], found) for name in batch_norm.COUNTS):
        return None
    two = values.number(found["two"])
    adds = _adding(values, found)
    if two is None or np.ndim(two) or two != 2.0 or adds is None:
        return None
    names = {found[part.name][0] for part in parts} | {adds.name}
    scaled = list(_matches(values, [batch_norm.BY_SCALE], found))
    if "scale" in found and len(scaled) == 1:
        found = scaled[0]
        names.add(found[batch_norm.BY_SCALE.name][0])
    one = Norm(found, adds, frozenset(names), float(epsilon))
    return one if _alone(values, one) else None


def _is_axes(values: Values, edge: ir.Edge, sizes: ir.Shape) -> bool:
    """Whether a sum along axes is one of all that a channel has, of data so large."""
    axes, rank = values.number(edge), len(sizes or ())
    if sizes is None or axes is None or np.ndim(axes) != 1:
        return False
    chosen = {axis % rank for axis in axes.tolist()}
    long = {axis for axis in _ALL_BUT_CHANNELS if sizes[axis] != 1}
    return long <= chosen <= {*_ALL_BUT_CHANNELS}


def _counts(values: Values, edge: ir.Edge, found: Found) -> bool:
    """Whether an edge has the number of elements of a channel."""
    graph, number = values.graph, values.number(edge)
    if number is not None:
        sizes = graph.shape(found["x"]) or ()
        return (
            -1 not in sizes
            and np.ndim(number) == 0
            and number == elements_of_channel(sizes)
        )
    chain = []
    for op in batch_norm.COUNTED:
        node = graph.nodes.get(edge[0])
        if node is None or node.op != op:
            return False
        chain.append(node)
        edge = node.inputs[0]
    _, product, chosen, _ = chain
    whole = values.integers(product.inputs[1])
    axes, axis = values.integers(chosen.inputs[1]), values.integers(chosen.inputs[2])
    if whole is None or axes is None or axis is None or np.any(axis):
        return False
    one_number = np.ravel(whole).tolist() == [0] and not product.flag("keep_dims")
    every = tuple(sorted(axes.tolist())) == _ALL_BUT_CHANNELS
    data = values.own(edge) in (found["x"], found["deviation"])
    return data and one_number and every


def elements_of_channel(sizes: Sequence[int]) -> int:
    """How many elements of data of these sizes each channel has."""
    return math.prod(sizes[axis] for axis in _ALL_BUT_CHANNELS)


def _adding(values: Values, found: Found) -> ir.Node | None:
    """The node that adds up the terms of the gradient by the data."""
    terms = {found[term] for term in batch_norm.TERMS}
    for node in values.readers(found[batch_norm.TERMS[0]]):
        read = [values.own(edge) for edge in node.inputs]
        if node.op == batch_norm.ADDS and terms <= set(read):
            once = all(read.count(term) == 1 for term in terms)
            return node if once else None
    return None


def _alone(values: Values, one: Norm) -> bool:
    """Whether nothing but its parts reads or awaits what is as large as the data."""
    graph = values.graph
    nodes = [graph.nodes[name] for name in one.names]
    marked = any(node.has(mark) for node in nodes for mark in _MARKS)
    if marked or len({node.device for node in nodes}) > 1:
        return False
    # What a constant waits for, as a call that was inlined, changes no value.
    if any(not one.names.issuperset(node.controls) for node in nodes):
        return False
    # A constant of the gradient is made with it; what waits for `y` can wait for that
    # of the kernel.
    waits = one.names | {one.edges["two"][0]}
    inner = one.names - {one.edges["y"][0]}
    if any(not waits >= values.awaiting.get(name, waits) for name in inner):
        return False
    large = {one.edges[name] for name in batch_norm.LARGE}
    if large & {values.own(result.edge) for result in graph.results}:
        return False
    return all(
        node.name in one.names or facts(node.op).kind is Kind.SHAPE
        for edge in large
        for node in values.readers(edge)
    )
