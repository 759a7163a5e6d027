"""Adds casts to one graph: one per tensor and direction; constants are rounded instead.

The caller says where a cast is needed; nothing is decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from amp.graph_rewrite.graph import bridges, ir, op_schema, rounding
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.plan import CastForm, MadeCast

MakeEdge = Callable[[ir.Edge], ir.Edge]
# Known when a graph is compiled, whatever their inputs are.
_KNOWN = frozenset({Kind.CONSTANT, Kind.SHAPE})


class Casts:
    """Returns the 16-bit or float32 form of an edge, adding a node when first asked.

    A constant gets a rounded copy instead of a cast. The 16-bit form of a cast from 16
    bits is the input of that cast, as 16 -> 32 -> 16 bits changes no value; the other
    order, 32 -> 16 -> 32, rounds and is never removed.

    Args:
      nodes: the graph's nodes by name; new nodes are added to it.
      number: DataType number of the 16-bit type.
      barrier: whether XLA compiles the graph. Its simplifier may remove a cast down and
        up, so emulation puts a barrier between the two. Not where all that a value is
        computed from is known: TensorFlow may compute that before XLA compiles, and has
        no kernel for a barrier.
      fed: nodes whose tensors the caller replaces, whatever the node computes.
    """

    def __init__(
        self,
        nodes: dict[str, ir.Node],
        number: int,
        *,
        barrier: bool,
        fed: Container[str],
    ) -> None:
        self._nodes = nodes
        self._fed = fed
        self._number = number
        self._barrier = barrier
        self._suffix = ir.DTYPE_NAMES[number]
        self._made: dict[tuple[ir.Edge, str], ir.Edge] = {}
        self._folds: dict[str, bool] = {}  # see `_is_folded`

    def down(self, edge: ir.Edge) -> ir.Edge:
        """The edge in 16 bits."""
        return self._once(edge, "down", self._down)

    def know_down(self, edge: ir.Edge, low: ir.Edge) -> None:
        """Sets `low` as the existing 16-bit form of an edge."""
        self._made[edge, "down"] = low

    def know_up(self, edge: ir.Edge, high: ir.Edge) -> None:
        """Notes that the float32 form of a 16-bit edge is there already."""
        self._made[edge, "up"] = high

    def up(self, edge: ir.Edge) -> ir.Edge:
        """The float32 form of a 16-bit edge."""
        return self._once(edge, "up", lambda e: self._cast(e, self._number, ir.FLOAT))

    def late(self, edge: ir.Edge, after: str) -> ir.Edge:
        """Another float32 form of a 16-bit edge, cast after node `after` has run."""
        return self._once(edge, "late", lambda e: self._late(e, after))

    def _late(self, edge: ir.Edge, after: str) -> ir.Edge:
        if not after:  # a second cast would run at once, like the first
            return self.up(edge)
        name, _ = made = self._cast(edge, self._number, ir.FLOAT)
        node = self._nodes[name].changed(updates={ir.LATE: True})
        self._nodes[name] = dataclasses.replace(node, controls=(after,))
        return made

    def rounded(self, edge: ir.Edge) -> ir.Edge:
        """A float32 edge with its values rounded to the 16-bit type."""
        return self._once(edge, "rounded", self._rounded)

    def integers(self, reader: ir.Node, kind: str, values: Sequence[int]) -> ir.Edge:
        """A constant of integers, shape [len(values)], for the node that reads it.

        It waits for the node's first input, so that it is in the same frame of a loop.
        """
        name, after = self._name(reader.name, kind), reader.inputs[0][0]
        given = ir.Tensor(np.array(values, np.int32), ir.INT32)
        attrs: dict[str, ir.Value] = {"dtype": ir.Type(ir.INT32), "value": given}
        controls = (after,) if after in self._nodes else ()
        self._nodes[name] = ir.Node(
            name, "Const", (), controls, reader.device, None, attrs
        )
        return (name, 0)

    def _once(self, edge: ir.Edge, kind: str, make: MakeEdge) -> ir.Edge:
        if (edge, kind) not in self._made:
            self._made[edge, kind] = make(edge)
        return self._made[edge, kind]

    def _down(self, edge: ir.Edge) -> ir.Edge:
        node = self._maker(edge)
        if node is not None and facts(node.op).kind is Kind.CONSTANT:
            return self._constant(node, self._number)
        if (
            node is not None
            and facts(node.op).kind is Kind.CAST
            and node.types("SrcT") == (self._number,)
        ):
            return node.inputs[0]
        return self._cast(edge, ir.FLOAT, self._number)

    def _maker(self, edge: ir.Edge) -> ir.Node | None:
        """The node that makes the tensor on an edge, None where that is fed."""
        return None if edge[0] in self._fed else self._nodes.get(edge[0])

    def _rounded(self, edge: ir.Edge) -> ir.Edge:
        node = self._maker(edge)
        if node is not None and facts(node.op).kind is Kind.CONSTANT:
            return self._constant(node, ir.FLOAT)
        low = self._cast(edge, ir.FLOAT, self._number)
        if self._barrier and not self._is_folded(edge[0]):
            low = self._add(
                edge,
                "barrier",
                "XlaOptimizationBarrier",
                low,
                T=ir.Types((self._number,)),
            )
        return self._cast(low, self._number, ir.FLOAT)

    def _is_folded(self, name: str) -> bool:
        """Whether TensorFlow may compute a node before XLA compiles the graph."""
        pending, begun = [name], set()
        while pending:
            at = pending[-1]
            node = None if at in self._fed else self._nodes.get(at)
            if at in self._folds or node is None:
                found = self._folds.get(at, False)
            elif facts(node.op).kind in _KNOWN:
                found = True
            elif not node.inputs or op_schema.is_stateful(node.op):
                found = False
            elif at not in begun:
                begun.add(at)
                pending += [e[0] for e in node.inputs if e[0] not in begun]
                continue
            else:  # a node of a loop waits for itself, and is not computed before
                found = all(self._folds.get(e[0], False) for e in node.inputs)
            self._folds[at] = found
            pending.pop()
        return self._folds[name]

    def _constant(self, node: ir.Node, number: int) -> ir.Edge:
        values = rounding.rounded(node.tensor(), self._number)
        name = self._name(node.name, f"{self._suffix}_value")
        self._nodes[name] = ir.Node(
            name,
            "Const",
            (),
            node.controls,
            node.device,
            None,
            {"dtype": ir.Type(number), "value": ir.Tensor(values, number)},
        )
        return (name, 0)

    def _cast(self, edge: ir.Edge, source: int, target: int) -> ir.Edge:
        kind = f"to_{ir.DTYPE_NAMES[target]}"
        types = {"SrcT": ir.Type(source), "DstT": ir.Type(target)}
        return self._add(edge, kind, "Cast", edge, **types)

    def _add(
        self, of: ir.Edge, kind: str, op: str, edge: ir.Edge, **attrs: ir.Value
    ) -> ir.Edge:
        producer = self._nodes.get(of[0])
        port = f"_{of[1]}" if of[1] else ""
        name = self._name(of[0], f"{kind}{port}")
        device = producer.device if producer is not None else ""
        self._nodes[name] = ir.Node(name, op, (edge,), (), device, None, attrs)
        return (name, 0)

    def _name(self, base: str, kind: str) -> str:
        return free_name(base, kind, self._nodes)


def free_name(base: str, kind: str, taken: Container[str]) -> str:
    """A name for a node that is made of another one, which no node has.

    Args:
      base: the other node's name.
      kind: what it is made for.
      taken: the names there are.
    """
    name, count = f"{base}/amp_{kind}", 1
    while name in taken:
        count += 1
        name = f"{base}/amp_{kind}_{count}"
    return name


def casts_made(before: ir.Graph, after: ir.Graph, number: int) -> Iterator[MadeCast]:
    """The casts that a native twin has and its original has not.

    Args:
      before: the original.
      after: what was made of it.
      number: the 16-bit type.
    """
    added = after.nodes.keys() - before.nodes.keys()
    for name in added:
        node = after.nodes[name]
        base, _, _ = name.rpartition("/amp_")
        constant = facts(node.op).kind is Kind.CONSTANT
        if constant and base in before.nodes and node.types("dtype") == (number,):
            yield MadeCast((base, 0), "folded")
        elif bridges.is_bridge(node, number):
            ((source, index),) = node.inputs
            # What is made in float32 and stored in 16 bits is cast twice.
            while source in added and bridges.is_bridge(after.nodes[source], number):
                ((source, index),) = after.nodes[source].inputs
            if source in added:  # a fetched node that has moved aside
                source, _, _ = source.rpartition("/amp_")
            up: CastForm = "late" if node.has(ir.LATE) else "up"
            down = bridges.is_down(node, number)
            yield MadeCast((source, index), "down" if down else up)
