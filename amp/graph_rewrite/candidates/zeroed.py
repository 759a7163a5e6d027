"""Steps that would write to a variable what the zeros of an overflow make not finite.

After an overflow a program that updates by hand is given zeros. Most updates then do
nothing. One that divides by a gradient's norm, or by a product with it as conjugate
gradients do, makes NaN of them and keeps it. Only tells such a module from others; that
it stays float32 is `eligibility`'s rule.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from amp.graph_rewrite.candidates.unscaled import writing
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.handovers import handed_on
from amp.graph_rewrite.ops import loss_scale
from amp.graph_rewrite.ops.op_table import Kind, Role, Row, facts
from amp.loss_scaling.scale import NoLossScale
from amp.policy import Policy

_REAL = ir.FLOATS | {ir.DOUBLE}
_Place: TypeAlias = tuple[str, ir.Edge]  # the name of a function, and an edge there


class _Value(enum.Enum):
    """What all elements of a tensor may be after an overflow."""

    ZERO = "0"
    BLANK = "0, without an overflow too"
    INFINITE = "infinite"
    NAN = "NaN"


def zeroed(
    module: ir.Module, policy: Policy, behind: Mapping[str, frozenset[str]]
) -> str:
    """Why a module must stay float32 for an overflow's sake, "" if it need not.

    A number added to the divisor, a bound on it, one on what only an infinite factor
    goes into, and a choice by a condition keep finite what is written. The update of an
    optimizer is left out as a whole.

    Args:
      module: as it is analyzed.
      policy: settled.
      behind: what is downstream of unscale markers (`unscale_markers.behind_markers`).
    """
    rule = policy.loss_scale
    if isinstance(rule, NoLossScale) or rule.on_overflow != "zeros":
        return ""
    written = [
        (graph.name, node)
        for graph, nodes in writing(module, behind)
        for node in nodes
        if node.text(ir.KEEP) != ir.OPTIMIZER
    ]
    if not written or not _divides(module, behind):
        return ""
    walk = _Walk(module)
    found = _kept(walk, written)
    if found and walk.compared:
        found = _kept(_Walk(module, walk.compared), written)
    return found


def _kept(walk: _Walk, written: Iterable[tuple[str, ir.Node]]) -> str:
    """Says which of some nodes, with their functions, keeps what is not finite."""
    for name, node in written:
        for edge in node.inputs[1:]:
            if (name, edge) in walk.broken:
                by = walk.broken[name, edge]
                return f"{node.name} would keep what {by} makes of an overflow"
    return ""


def _divides(module: ir.Module, behind: Mapping[str, frozenset[str]]) -> bool:
    """Whether anything downstream of a gradient has a pole at 0, or may have one."""
    rows = (
        facts(graph.nodes[name].op)
        for graph in module.graphs()
        for name in behind.get(graph.name, ())
    )
    return any(row.poles or row.kind is Kind.POWER for row in rows)


class _Walk:
    """What the tensors of a module are after an overflow, where that is known.

    Goes on from what is found to its readers, into functions and over trips of loops.

    Args:
      module: as of `zeroed`.
      chosen: nodes that call functions by a condition (a function's name, and the
        node's) and are not gone into.

    Attributes:
      broken: the edges that are not finite, each with the node where it began.
      compared: nodes that call functions by a condition that compares a zero. Such a
        program has seen to it: of a norm that is 0 none is more than 1.
    """

    def __init__(
        self, module: ir.Module, chosen: Container[tuple[str, str]] = ()
    ) -> None:
        self._graphs = {graph.name: graph for graph in module.graphs()}
        self._functions = module.functions
        self._chosen = chosen
        self._lookup = op_schema.lookup_of(module)
        self._values: dict[_Place, set[_Value]] = {}
        self._decided: set[_Place] = set()  # truth values
        self._pending: list[_Place] = []
        self._onward: dict[_Place, list[_Place]] = {}
        self._conditions: list[tuple[_Place, tuple[str, str]]] = []
        self.broken: dict[_Place, str] = {}
        for name in self._graphs:
            self._link(name)
        for name, graph in self._graphs.items():
            for node in graph.nodes.values():
                if node.flag(ir.UNSCALE) and self._may_be_zero(graph, node):
                    self._add([(name, (node.name, 0))], _Value.ZERO)
                elif _is_blank(node):
                    self._add([(name, (node.name, 0))], _Value.BLANK)
        while self._pending:
            self._go_on(self._pending.pop())
        self.compared = frozenset(
            node for place, node in self._conditions if place in self._decided
        )

    def _link(self, name: str) -> None:
        """Notes which edges of other functions hold what those of one function do."""
        for node in self._graphs[name].nodes.values():
            call = calls.call_of(node, self._functions)
            if call is None or call.each:
                continue
            callees = calls.callees_of(node, call)
            known = {n: self._graphs[n] for n in callees if n in self._graphs}
            if not known:
                continue
            own = name, node.name
            if call.loop:
                condition = self._graphs[callees[0]]
                place = condition.name, condition.results[0].edge
                self._conditions.append((place, own))
            elif call.skip:
                self._conditions.append(((name, node.inputs[0]), own))
            if own not in self._chosen:
                for one, other in handed_on(name, node, call, known):
                    self._onward.setdefault(one, []).append(other)

    def _may_be_zero(self, graph: ir.Graph, node: ir.Node) -> bool:
        """Whether an unscaled gradient is zero after an overflow.

        So it is where the factor is chosen by a condition; that of `unscale` by hand,
        and of a gradient without a scale, is not.
        """
        if node.op != loss_scale.UNSCALE:
            return False
        edge: ir.Edge | None = node.inputs[1]
        while edge is not None and edge[0] in graph.nodes:
            factor = graph.nodes[edge[0]]
            if any(slot.type == ir.BOOL for slot in self._signature(factor).ins):
                return True
            edge = factor.inputs[0] if facts(factor.op).moves else None
        return edge is not None  # an argument

    def _signature(self, node: ir.Node) -> op_schema.Signature:
        known = self._lookup(node.op)
        return op_schema.UNKNOWN if known is None else known.signature(node)

    def _go_on(self, place: _Place) -> None:
        name, edge = place
        for other in self._onward.get(place, ()):
            if place in self._decided:
                self._decide([other])
            for value in tuple(self._values.get(place, ())):
                self._add([other], value, self.broken.get(place, ""))
        graph = self._graphs[name]
        for reader in dict.fromkeys(each for each, _ in graph.readers.get(edge, ())):
            self._visit(graph, graph.nodes[reader])

    def _visit(self, graph: ir.Graph, node: ir.Node) -> None:
        """Notes what a node gives."""
        if node.flag(ir.UNSCALE) or calls.call_of(node, self._functions) is not None:
            return
        row, signature = facts(node.op), self._signature(node)
        read = {
            index: (graph.name, edge)
            for index, (edge, slot) in enumerate(
                zip(node.inputs, signature.ins, strict=False)
            )
            if slot.type in _REAL
        }
        given = {i: self._values[at] for i, at in read.items() if at in self._values}
        places = [(graph.name, (node.name, i)) for i in range(len(signature.outs))]
        pairs = [*zip(places, signature.outs, strict=True)]
        conditions = [
            (graph.name, edge)
            for edge, slot in zip(node.inputs, signature.ins, strict=False)
            if slot.type == ir.BOOL
        ]
        compares = bool(given) and row.kind is not Kind.CHECK
        if compares or not self._decided.isdisjoint(conditions):
            self._decide(place for place, slot in pairs if slot.type == ir.BOOL)
        if conditions and not (row.in_frames and self._decided.isdisjoint(conditions)):
            return  # it chooses
        made = [place for place, slot in pairs if slot.type in _REAL]
        sources = [self.broken[read[i]] for i in given if read[i] in self.broken]
        for value in _made(node, graph, row, given, len(read)):
            self._add(made, value, next(iter(sources), node.name))

    def _add(self, places: Iterable[_Place], value: _Value, by: str = "") -> None:
        for place in places:
            found = self._values.setdefault(place, set())
            if value not in found:
                found.add(value)
                self._pending.append(place)
                if value in (_Value.INFINITE, _Value.NAN):
                    self.broken.setdefault(place, by)

    def _decide(self, places: Iterable[_Place]) -> None:
        new = [place for place in places if place not in self._decided]
        self._decided.update(new)
        self._pending += new


def _is_blank(node: ir.Node) -> bool:
    """Whether a node gives zeros, whatever it reads."""
    kind = facts(node.op).kind
    if kind is Kind.CONSTANT and not _REAL.isdisjoint(node.types("dtype")):
        value = node.tensor()
        return value is not None and not np.any(value)
    return kind is Kind.ZEROS


def _made(
    node: ir.Node,
    graph: ir.Graph,
    row: Row,
    given: Mapping[int, set[_Value]],
    operands: int,
) -> Iterator[_Value]:
    """What a node makes of its operands; nothing that is not known.

    Args:
      node, graph: the node, and its graph.
      row: its facts.
      given: what is known of operands, by their numbers.
      operands: how many there are.
    """
    zeros = {i for i, values in given.items() if _Value.ZERO in values}
    blank = {i for i, values in given.items() if _Value.BLANK in values}
    infinite = {i for i, values in given.items() if _Value.INFINITE in values}
    nan = any(_Value.NAN in values for values in given.values())
    wins = bool(zeros) and node.op == loss_scale.UNSCALE  # a zero, over infinities
    multiplies = row.kind is Kind.PRODUCT or _is_product(row)
    one_is_enough = multiplies or row.in_frames
    quotient = 1 in row.singular and 0 in zeros
    every = operands if _stays_zero(row) else math.inf
    if nan and not wins and not (row.moves and row.bounded):
        yield _Value.NAN
    if row.kind is Kind.POWER:
        yield from _power(graph, node.inputs[1], given.get(0, set()))
    elif not zeros.isdisjoint(row.poles):
        yield _Value.NAN if 0 in zeros - {*row.poles} else _Value.INFINITE
    elif multiplies and zeros and infinite and not wins:
        yield _Value.NAN
    elif infinite and not wins and _stays_infinite(row, infinite):
        yield _Value.INFINITE
    elif zeros and (one_is_enough or quotient or (len(zeros | blank) == every)):
        yield _Value.ZERO
    if blank and (one_is_enough or len(blank) == every):
        yield _Value.BLANK


def _power(graph: ir.Graph, exponent: ir.Edge, base: set[_Value]) -> Iterator[_Value]:
    """What a power is, if its exponent is a constant."""
    node = graph.nodes.get(exponent[0])
    value = node.tensor() if node and facts(node.op).kind is Kind.CONSTANT else None
    if value is None or not value.size:
        return
    if _Value.ZERO in base and np.all(value > 0):
        yield _Value.ZERO
    if _Value.ZERO in base and np.any(value < 0):
        yield _Value.INFINITE
    if _Value.INFINITE in base and np.any(value > 0):
        yield _Value.INFINITE


def _stays_zero(row: Row) -> bool:
    """Whether what is made of zeros alone is zeros."""
    return _adds(row) or row.selects or _passes(row)


def _stays_infinite(row: Row, infinite: Container[int]) -> bool:
    """Whether what is made of infinite operands with these numbers is infinite."""
    if row.selects or row.bounded:
        return False
    if row.poles:
        return 0 in infinite and 0 not in row.poles
    adds = _adds(row) or row.kind is Kind.PRODUCT
    return adds or row.in_frames or _is_product(row) or _passes(row)


def _adds(row: Row) -> bool:
    """Whether elements are sums, or squares."""
    return row.sums or row.adds or row.kind is Kind.SQUARE


def _is_product(row: Row) -> bool:
    """Whether it multiplies matrices or windows, without anything that it adds."""
    return row.role is Role.COMPUTE and row.work != "rnn"


def _passes(row: Row) -> bool:
    """Whether elements come out as they are, or their sizes or roots."""
    return row.zero or (row.moves and not row.bounded)
