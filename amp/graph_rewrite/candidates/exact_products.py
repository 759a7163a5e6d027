"""Products of which every digit is read: they count, or their results are ranked.

Of one function at a time, by what feeds a product and what reads it. No value of a run
is known, and no other arithmetic is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.upstream import COPIES
from amp.graph_rewrite.graph import ir, rounding
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_DISCRETE = ir.INTEGERS | {ir.BOOL}
_ADDS = frozenset({Kind.SUM, Kind.BIAS})


def exact_products(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Refuses products whose result is a number or an order that rounding changes.

    Case 1: both operands are whole numbers (one-hots, masks, ids). What they give is a
      count, as a confusion matrix is, and in 16 bits one more is soon none.
    Case 2: its results are compared with one another, and how many are larger is
      counted: the rank of a score. In 16 bits many tie, and a tie is not larger. Sums
      and moves may lie between; they stay float32 with it.

    Args:
      graph: one function.
      typed: its nodes.
    """
    found: dict[str, Reason] = {}
    for name, view in typed.items():
        if _is_product(view) and _are_whole(typed, view):
            found[name] = Reason("count", "products of whole numbers, which count")
        elif _compares(view) and _is_counted(graph, typed, name):
            one, other = (_before(typed, edge) for edge in view.node.inputs)
            if any(_is_product(typed[at]) for at in one.keys() & other.keys()):
                why = Reason("decision", name)
                found |= {at: why for at in one | other if _is_ranked(typed[at])}
    return found


def _are_whole(typed: Mapping[str, Typed], view: Typed) -> bool:
    """Whether all operands of a node are whole numbers, and not all are constants."""
    operands = list(_floats(view))
    if len(operands) < 2:
        return False
    read: set[str] = set()  # the nodes that they are moved by, and what these read
    if not all(_is_whole(typed, edge, read) for edge in operands):
        return False
    return any(name not in typed or not _is_constant(typed[name]) for name in read)


def _is_whole(typed: Mapping[str, Typed], edge: ir.Edge, read: set[str]) -> bool:
    """Whether a tensor was cast from discrete ones, or is a constant of whole numbers.

    Args:
      typed: the nodes.
      edge: the tensor.
      read: takes what the nodes read that it is moved by, and the casts.
    """
    pending, seen = [edge[0]], {edge[0]}
    while pending:
        name = pending.pop()
        view = typed.get(name)
        if view is None:
            return False
        if view.facts.kind is Kind.CAST and view.ins[0].type in _DISCRETE:
            read.add(name)
            continue
        if _is_constant(view):
            values = rounding.distinct(view.node.tensor())
            if np.array_equal(values, np.rint(values)):
                continue
            return False
        sources = [source for source, _ in _floats(view)] if _moves(view) else []
        if not sources:
            return False
        read.update(source for source, _ in view.node.inputs if source not in sources)
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return True


def _is_constant(view: Typed) -> bool:
    return view.facts.kind is Kind.CONSTANT


def _compares(view: Typed) -> bool:
    """Whether a node compares two floating-point tensors, element by element."""
    outs = [slot.type for slot in view.outs]
    return outs == [ir.BOOL] and len(view.ins) == 2 and len(list(_floats(view))) == 2


def _is_counted(graph: ir.Graph, typed: Mapping[str, Typed], name: str) -> bool:
    """Whether truth values are cast to numbers, with others or moved before."""
    pending, seen = [name], {name}
    while pending:
        for reader, _ in graph.readers.get((pending.pop(), 0), ()):
            view = typed[reader]
            if view.facts.kind is Kind.CAST:
                return True
            if [slot.type for slot in view.outs] == [ir.BOOL] and reader not in seen:
                seen.add(reader)
                pending.append(reader)
    return False


def _before(typed: Mapping[str, Typed], edge: ir.Edge) -> dict[str, None]:
    """The nodes that an edge comes from through sums and moves, up to products."""
    found: dict[str, None] = {}
    pending = [edge[0]]
    while pending:
        name = pending.pop()
        view = typed.get(name)
        if view is None or name in found:
            continue
        if _is_product(view):
            found[name] = None
        elif _moves(view) or view.facts.kind in _ADDS:
            found[name] = None
            pending += [source for source, _ in _floats(view)]
    return found


def _is_product(view: Typed) -> bool:
    return view.facts.role is Role.COMPUTE


def _is_ranked(view: Typed) -> bool:
    """Whether a node computes what is compared, and does not only move it."""
    return _is_product(view) or view.facts.kind in _ADDS


def _moves(view: Typed) -> bool:
    return view.facts.role is Role.MOVE or view.facts.kind in COPIES


def _floats(view: Typed) -> Iterator[ir.Edge]:
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return (edge for edge, slot in pairs if slot.type in ir.FLOATS)
