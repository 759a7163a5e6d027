"""Products of which every digit is read: they count, or their results are ranked.

Of one function at a time, by what feeds a product and what reads it. No value of a run
is known, and no other arithmetic is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from amp.graph_rewrite.candidates.context import Format, Typed
from amp.graph_rewrite.candidates.sums import products_added
from amp.graph_rewrite.candidates.upstream import COPIES
from amp.graph_rewrite.graph import ir, rounding
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_DISCRETE = ir.INTEGERS | {ir.BOOL}
_ADDS = frozenset({Kind.SUM, Kind.BIAS})
_NEAR = 64  # nodes that are looked at behind a comparison


def exact_products(
    graph: ir.Graph, typed: Mapping[str, Typed], format: Format
) -> dict[str, Reason]:
    """Refuses products whose result is a number or an order that rounding changes.

    Case 1: both operands are whole numbers (one-hots, masks, ids). What they give is a
      count, as a confusion matrix is, and in 16 bits one more is soon none. Not if the
      type holds every count that so many zeros and ones can come to.
    Case 2: its results are compared with one another, and how many are larger is added
      up: the rank of a score. In 16 bits many tie, and a tie is not larger. Moves and a
      bias may lie between; that stays float32 with it.

    Args:
      graph: one function.
      typed: its nodes.
      format: the 16-bit type.
    """
    found: dict[str, Reason] = {}
    if not any(map(_is_product, typed.values())):
        return found
    whole: dict[str, _Whole] = {}
    roots: dict[str, _Root] = {}
    for name in graph.order:
        view = typed[name]
        sources = [source for source, _ in _floats(view)]
        if _is_product(view):
            roots[name] = _Root(name)
            if _counts(graph, view, [whole.get(source) for source in sources], format):
                found[name] = Reason("count", "products of whole numbers, which count")
        elif (made := _made_whole(view, sources, whole, typed)) is not None:
            whole[name] = made
        elif (root := _root(view, sources, roots)) is not None:
            roots[name] = root
        elif _compares(view) and all(source in roots for source in sources):
            one, other = (roots[source] for source in sources)
            if one.product == other.product and _is_counted(graph, typed, name):
                ranked = {one.product, *one.sums, *other.sums}
                found |= dict.fromkeys(ranked, Reason("decision", name))
    return found


class _Whole(NamedTuple):
    """A tensor of whole numbers.

    Attributes:
      constant: whether it is computed of constants alone.
      unit: whether all are 0 or 1.
    """

    constant: bool
    unit: bool


class _Root(NamedTuple):
    """Where a tensor comes from.

    Attributes:
      product: the node that computes it.
      sums: the node that adds a bias to it, if any does.
    """

    product: str
    sums: tuple[str, ...] = ()


def _counts(
    graph: ir.Graph, view: Typed, operands: list[_Whole | None], format: Format
) -> bool:
    """Whether a product gives counts that the type may not hold."""
    known = [each for each in operands if each is not None]
    if len(known) < 2 or len(known) < len(operands):
        return False
    if all(each.constant for each in known):
        return False
    terms = products_added(graph, view)
    if terms is None or not all(each.unit for each in known):
        return True
    return terms > format.counts


def _made_whole(
    view: Typed,
    sources: list[str],
    whole: Mapping[str, _Whole],
    typed: Mapping[str, Typed],
) -> _Whole | None:
    """What a node makes of whole numbers, None if others; `sources` give it floats."""
    kind = view.facts.kind
    if kind is Kind.CAST and view.ins[0].type in _DISCRETE:
        return _Whole(False, view.ins[0].type == ir.BOOL)
    if kind is Kind.CONSTANT:
        return _constant(view) if view.outs[0].type == ir.FLOAT else None
    if (
        not sources
        or not _moves(view)
        or not all(source in whole for source in sources)
    ):
        return None
    given = [whole[source] for source in sources]
    names = {name for name, _ in view.node.inputs} - set(sources)
    chosen = any(name not in typed or not _is_constant(typed[name]) for name in names)
    constant = not chosen and all(each.constant for each in given)
    return _Whole(constant, all(each.unit for each in given))


def _constant(view: Typed) -> _Whole | None:
    values = view.node.tensor()
    if values is None or not values.size:
        return None
    values = rounding.distinct(values)
    first = values.flat[0]
    if first != np.rint(first) or not np.array_equal(values, np.rint(values)):
        return None  # mostly told by the first
    return _Whole(True, bool(values.min() >= 0 and values.max() <= 1))


def _root(view: Typed, sources: list[str], roots: Mapping[str, _Root]) -> _Root | None:
    """The product that a node moves the results of, or adds a bias to."""
    found = {roots.get(source) for source in sources}
    if _moves(view):
        return next(iter(found)) if len(found) == 1 else None
    known = [each for each in found if each is not None]
    if view.facts.kind in _ADDS and len(known) == 1 and not known[0].sums:
        return _Root(known[0].product, (view.node.name,))
    return None


def _compares(view: Typed) -> bool:
    """Whether a node compares two floating-point tensors, element by element."""
    floats = [slot.type in ir.FLOATS for slot in view.ins]
    return [slot.type for slot in view.outs] == [ir.BOOL] and floats == [True, True]


def _is_counted(graph: ir.Graph, typed: Mapping[str, Typed], name: str) -> bool:
    """Whether truth values are added up: cast to numbers, moved, and masked maybe."""
    pending, seen = [(name, False)], {name}
    for at, cast in pending:
        if len(pending) > _NEAR:
            return False
        for reader, _ in graph.readers.get((at, 0), ()):
            view = typed[reader]
            if cast and view.facts.sums:
                return True
            onward = view.facts.kind is Kind.CAST or _moves(view)
            if cast:
                onward = onward or view.facts.kind is Kind.PRODUCT
            else:
                onward = onward or [slot.type for slot in view.outs] == [ir.BOOL]
            if onward and reader not in seen:
                seen.add(reader)
                pending.append((reader, cast or view.facts.kind is Kind.CAST))
    return False


def _is_product(view: Typed) -> bool:
    return view.facts.role is Role.COMPUTE


def _is_constant(view: Typed) -> bool:
    return view.facts.kind is Kind.CONSTANT


def _moves(view: Typed) -> bool:
    return view.facts.role is Role.MOVE or view.facts.kind in COPIES


def _floats(view: Typed) -> Iterator[ir.Edge]:
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return (edge for edge, slot in pairs if slot.type in ir.FLOATS)
