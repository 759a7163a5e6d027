"""Makes kernels of batch normalization that a program has written out.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.normalize.variable_reads import redirected
from amp.graph_rewrite.ops import batch_norm
from amp.graph_rewrite.ops.batch_norm import Part
from amp.graph_rewrite.ops.op_table import Kind, Role, facts
from amp.policy import Policy

_MARKS = (ir.KEEP, ir.UNSCALE, ir.SEED)
_PLACES = "_class"  # of nodes that are to be on one device: "loc:@" and a node's name
_ALL_BUT_CHANNELS = (0, 1, 2)  # axes of the data, NHWC
_Found = dict[str, ir.Edge]  # edges by the names of the values


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
    used = graph.with_nodes(_without(graph, graph.nodes))
    values, norms, taken = _Values(used), list[_Norm](), set[str]()
    for name in [name for name, node in used.nodes.items() if node.op in last.ops]:
        one = next(_norms(values, name), None)
        kept = one is None or any(_kept(used.nodes[n], policy) for n in one.names)
        if one is not None and not kept and taken.isdisjoint(one.names):
            taken |= one.names
            norms.append(one)
    if not norms:
        return graph
    made = _Made(values)
    for one in norms:
        made.add(one)
    return made.graph(taken) or graph


def _kept(node: ir.Node, policy: Policy) -> bool:
    """Whether the policy says that a node stays as it is."""
    return node.op in policy.deny or policy.keeps(node.name)


class _Values:
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
class _Norm:
    """A batch normalization and its gradient.

    Attributes:
      edges: of the values by their names, those of `PARTS` and what they read.
      adds: the node that adds up the gradient by the data.
      names: of the nodes that compute parts, `adds` among them.
      epsilon: as it is added to the variance.
    """

    edges: _Found
    adds: ir.Node
    names: frozenset[str]
    epsilon: float


def _norms(values: _Values, last: str) -> Iterator[_Norm]:
    """The batch normalizations whose last vector a node computes; one or none."""
    whole = batch_norm.PARTS
    for parts in (whole, batch_norm.unscaled(whole)):
        start: _Found = {parts[0].name: (last, 0)}
        for found in _matches(values, parts, start):
            one = _norm(values, parts, found)
            if one is not None:
                yield one


def _matches(values: _Values, parts: Sequence[Part], found: _Found) -> Iterator[_Found]:
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


def _candidates(values: _Values, part: Part, found: _Found) -> list[ir.Node]:
    """The nodes that may compute a part: the one that is read, or that read one."""
    nodes = values.graph.nodes
    if part.name in found:
        node = nodes.get(found[part.name][0])
        return [node] if node is not None and node.op in part.ops else []
    known = next(found[read] for read in part.reads if read in found)
    readers = {node.name: node for node in values.readers(known)}
    return [node for node in readers.values() if node.op in part.ops]


def _unified(
    values: _Values, node: ir.Node, reads: Sequence[str], found: _Found
) -> _Found | None:
    """What is found if a node reads the values of these names, None if it does not."""
    if len(node.inputs) != len(reads) or node.types("T") not in ((), (ir.FLOAT,)):
        return None
    more = dict(found)
    for read, edge in zip(reads, node.inputs, strict=True):
        own = values.data(edge) if read in batch_norm.DATA else values.own(edge)
        if more.setdefault(read, own) != own:
            return None
    return more


def _norm(values: _Values, parts: Sequence[Part], found: _Found) -> _Norm | None:
    """What was found, if the kernels compute that and may stand for it."""
    graph = values.graph
    data, channels = graph.shape(found["x"]), 0
    if data is not None and len(data) == len(_ALL_BUT_CHANNELS) + 1:
        channels = data[-1]
    # `direct` is added to what has the shape of the data, so `dy` has it at every call.
    epsilon = values.number(found["epsilon"])
    if channels < 1 or graph.shape(found["dy"]) != data:
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
    one = _Norm(found, adds, frozenset(names), float(epsilon))
    return one if _alone(values, one) else None


def _is_axes(values: _Values, edge: ir.Edge, sizes: ir.Shape) -> bool:
    """Whether a sum along axes is one of all that a channel has, of data so large."""
    axes, rank = values.number(edge), len(sizes or ())
    if sizes is None or axes is None or np.ndim(axes) != 1:
        return False
    chosen = {axis % rank for axis in axes.tolist()}
    long = {axis for axis in _ALL_BUT_CHANNELS if sizes[axis] != 1}
    return long <= chosen <= {*_ALL_BUT_CHANNELS}


def _counts(values: _Values, edge: ir.Edge, found: _Found) -> bool:
    """Whether an edge has the number of elements of a channel."""
    graph, number = values.graph, values.number(edge)
    if number is not None:
        sizes = graph.shape(found["x"]) or ()
        return -1 not in sizes and np.ndim(number) == 0 and number == _channel(sizes)
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


def _channel(sizes: Sequence[int]) -> int:
    return math.prod(sizes[axis] for axis in _ALL_BUT_CHANNELS)


def _adding(values: _Values, found: _Found) -> ir.Node | None:
    """The node that adds up the terms of the gradient by the data."""
    terms = {found[term] for term in batch_norm.TERMS}
    for node in values.readers(found[batch_norm.TERMS[0]]):
        read = [values.own(edge) for edge in node.inputs]
        if node.op == batch_norm.ADDS and terms <= set(read):
            once = all(read.count(term) == 1 for term in terms)
            return node if once else None
    return None


def _alone(values: _Values, one: _Norm) -> bool:
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


class _Made:
    """A graph's nodes with kernels for batch normalizations and their gradients."""

    def __init__(self, values: _Values) -> None:
        self._values, self._before = values, values.graph
        self._nodes = dict(values.graph.nodes)
        self._shapes: dict[ir.Edge, ir.Shape] = {}
        self._device = ""  # of what is added
        self._waited: dict[str, str] = {}  # the new node of each that others wait for
        self._same: dict[ir.Edge, ir.Edge] = {}  # the new edge of each that is replaced

    def add(self, one: _Norm) -> None:
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
        cyclic = missing > len(before.nodes) - len(before.order)
        return None if cyclic else made.with_shapes(shaped)

    def _waiting(self, node: ir.Node) -> ir.Node:
        """A node that waits for the new nodes in place of those that are replaced."""
        if self._waited.keys().isdisjoint(node.controls):
            return node
        controls = tuple(self._waited.get(name, name) for name in node.controls)
        return dataclasses.replace(node, controls=controls, pristine=False)

    def _kernels(self, one: _Norm, shape: ir.Shape) -> tuple[ir.Edge, ir.Edge]:
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
            count = _channel(shape)
            left = self._constant(f"{y}_left", (count - 1) / count)
        else:
            types = {**number, "out_type": ir.Type(ir.INT32)}
            size = self._add(f"{y}_size", "Size", (x,), types, ((),))
            ends = {"SrcT": ir.Type(ir.INT32), "DstT": ir.Type(ir.FLOAT)}
            size = self._add(f"{y}_elements", "Cast", (size,), ends, ((),))
            channels = self._constant(f"{y}_channels", (shape or (1,))[-1])
            part = self._add(f"{y}_part", "RealDiv", (channels, size), number, ((),))
            one = self._constant(f"{y}_one", 1.0)
            left = self._add(f"{y}_left", "Sub", (one, part), number, ((),))
        inputs = ((y, batch_norm.VARIANCE), left)
        vector = (shape or ())[-1:]
        return self._add(f"{y}_variance", "Mul", inputs, number, (vector,))

    def _add_up(self, one: _Norm, edge: ir.Edge) -> None:
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
    needs: Counter[str] = Counter(graph.control_results)
    needs.update(result.edge[0] for result in graph.results)
    for node in left.values():
        needs.update(_sources(node))

    def free(name: str) -> bool:
        return not needs[name] and not op_schema.is_stateful(left[name].op)

    pending = [name for name in parts if free(name)]
    while pending:
        gone = left.pop(pending.pop(), None)
        for source in () if gone is None else _sources(gone):
            needs[source] -= 1
            if source in left and free(source):
                pending.append(source)
    gone_places = {f"loc:@{name}" for name in graph.nodes.keys() - left.keys()}
    for name, node in left.items():
        if not gone_places.isdisjoint(node.strings(_PLACES)):
            assert node.attrs is not None
            bare = node.attrs.bare()
            left[name] = dataclasses.replace(node, attrs=bare, pristine=False)
    return left


def _sources(node: ir.Node) -> Iterator[str]:
    yield from (source for source, _ in node.inputs)
    yield from node.controls
