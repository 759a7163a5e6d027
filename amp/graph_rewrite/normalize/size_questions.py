"""Questions to TensorFlow's inference of shapes: nodes cut out of a graph.

A `Question` has the nodes whose shapes are asked for and what their shapes are computed
from; all else that they read stands in as a placeholder. It is asked in `graph_sizes`,
and what answers it is given from outside: nothing is inferred here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops import structure

_PREFIX = "amp_sizes"  # of the names of nodes that only the question has


class RefusedError(Exception):
    """TensorFlow finds the shapes of a node's inputs impossible.

    Attributes:
      node: its name, "" where the message does not tell.
    """

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


class Infer(Protocol):
    """Has TensorFlow infer shapes."""

    def __call__(self, nodes: Sequence[ir.Node]) -> ir.ShapeSource:
        """The shapes of the outputs of nodes that read nothing but one another.

        Raises:
          RefusedError: TensorFlow refuses a node.
        """


def _looked_up_in(
    op: str, indices: ir.Shape, traced: ir.Shape
) -> tuple[int, ...] | None:
    """The shape of a lookup's variable, as far as its result's tells; None: nothing."""
    if indices is None or traced is None:
        return None
    if op == structure.ROWS:  # an entry of the first dimension for each index
        return (-1, *traced[len(indices) :])
    if not indices or indices[-1] < 0:
        return None
    return (*[-1] * indices[-1], *traced[len(indices) - 1 :])


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What a question may use of its graph.

    Attributes:
      type_of: the DataType number of an edge.
      size: the size of an edge, as far as it is known.
      values: the values of vectors of integers that were computed before.
      computed: whether the node that makes an edge is to be in the question, because a
        shape may depend on the edge's value.
    """

    type_of: Callable[[ir.Edge], int]
    size: ir.ShapeSource
    values: Mapping[ir.Edge, tuple[int, ...]]
    computed: Callable[[ir.Edge], bool]


class Question:
    """The nodes of a question, made node by node.

    Args:
      nodes: of the graph.
      known: what the question may use of it.
      asked: names of the nodes whose outputs' shapes are asked for.
    """

    def __init__(
        self, nodes: Mapping[str, ir.Node], known: Known, asked: Sequence[str]
    ) -> None:
        self.nodes: list[ir.Node] = []
        self._given, self._known = nodes, known
        self._inside = set(asked)
        self._standing: dict[tuple[int, ir.Shape], ir.Edge] = {}
        for name in asked:
            self._copy(name)

    def values_of(self, edge: ir.Edge) -> ir.Edge:
        """Asks for the values of a vector of integers.

        Returns:
          An edge whose shape they are: inference knows values only as shapes.
        """
        types: dict[str, ir.Value] = {
            "T": ir.Type(ir.FLOAT),
            "index_type": ir.Type(self._known.type_of(edge)),
        }
        if self._wanted(edge):
            self._inside.add(edge[0])
            self._copy(edge[0])
        inputs = (self._source(edge), self._placeholder(ir.FLOAT, ()))
        return self._new("Fill", inputs, types)

    def _copy(self, first: str) -> None:
        """Adds a node of the graph, and those that tell its outputs' shapes."""
        pending = [first]
        while pending:
            node = self._given[pending.pop()]
            for edge in node.inputs:
                if self._wanted(edge):
                    self._inside.add(edge[0])
                    pending.append(edge[0])
            self.nodes.append(self._asked(node))

    def _asked(self, node: ir.Node) -> ir.Node:
        """A node as it is asked about.

        A placeholder for a handle tells nothing of its variable, so a lookup in one is
        asked about as one in a tensor. What remains of the variable's shape is told by
        the result's as it was traced.
        """
        inputs = tuple(map(self._source, node.inputs))
        if node.op in structure.LOOKUPS and not node.integer("batch_dims", 0):
            indices, traced = map(self._known.size, (node.inputs[1], (node.name, 0)))
            table = _looked_up_in(node.op, indices, traced)
            if table is not None:
                return self._lookup(node, inputs[1], table)
        return ir.Node(node.name, node.op, inputs, (), "", node.attrs, node.updates)

    def _lookup(
        self, node: ir.Node, indices: ir.Edge, table: tuple[int, ...]
    ) -> ir.Node:
        """A lookup in a tensor of a shape, in the place of one in a variable."""
        (number,) = node.types("dtype")
        (index,) = node.types("Tindices")
        inputs = [self._placeholder(number, table), indices]
        updates = {"Tparams": ir.Type(number), "Tindices": ir.Type(index)}
        if node.op == structure.ROWS:
            zero: dict[str, ir.Value] = {
                "dtype": ir.Type(ir.INT32),
                "value": ir.Tensor(np.int32(0), ir.INT32),
            }
            inputs.append(self._new("Const", (), zero))
            updates["Taxis"] = ir.Type(ir.INT32)
        op = structure.LOOKUPS[node.op]
        return ir.Node(node.name, op, tuple(inputs), (), "", None, updates)

    def _wanted(self, edge: ir.Edge) -> bool:
        """Whether the node that makes an edge has to be added."""
        return edge[0] not in self._inside and self._known.computed(edge)

    def _source(self, edge: ir.Edge) -> ir.Edge:
        """The edge that a node of the question reads for an edge of the graph."""
        if edge[0] in self._inside:
            return edge
        values, number = self._known.values.get(edge), self._known.type_of(edge)
        if values is None:
            return self._placeholder(number, self._known.size(edge))
        types: dict[str, ir.Value] = {
            "T": ir.Type(ir.FLOAT),
            "out_type": ir.Type(number),
        }
        return self._new("Shape", (self._placeholder(ir.FLOAT, values),), types)

    def _placeholder(self, number: int, shape: ir.Shape) -> ir.Edge:
        """What stands in for all tensors of a type and shape."""
        if (number, shape) not in self._standing:
            updates: dict[str, ir.Value] = {
                "dtype": ir.Type(number),
                "shape": ir.OneShape(shape),
            }
            self._standing[number, shape] = self._new("Placeholder", (), updates)
        return self._standing[number, shape]

    def _new(
        self, op: str, inputs: tuple[ir.Edge, ...], updates: Mapping[str, ir.Value]
    ) -> ir.Edge:
        name = f"{_PREFIX}/{len(self.nodes)}"
        self.nodes.append(ir.Node(name, op, inputs, (), "", None, updates))
        return (name, 0)
