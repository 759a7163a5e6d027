"""Products of which every digit is read: they count, are rounded, ranked or compared.

Of one function at a time, by what feeds a product and what reads it. No value of a run
is known, and no other arithmetic is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from amp.graph_rewrite.candidates.context import Format, Typed
from amp.graph_rewrite.candidates.sums import products_added
from amp.graph_rewrite.graph import ir, rounding
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_DISCRETE = ir.INTEGERS | {ir.BOOL}
_NEAR = 64  # nodes that are looked at behind a comparison
_FEW = 4  # moves that are looked at before an operand


def exact_products(
    graph: ir.Graph, typed: Mapping[str, Typed], format: Format
) -> dict[str, Reason]:
    """Refuses products whose result is a number or an order that rounding changes.

    Case 1: both operands are whole numbers (one-hots, masks, ids). What they give is a
      count, as a confusion matrix is, and in 16 bits one more is soon none. Not if the
      type holds every count that so many zeros and ones can come to.
    Case 2: its results are compared with one another, and how many are larger is added
      up: the rank of a score. In 16 bits many tie, and a tie is not larger. So where
      they are compared with a number, but not with 0: no rounding changes a sign.
    Case 3: its results are rounded to whole numbers, cast to them, or divided with a
      remainder: an index, a code, a parity.
    Case 4: its results are multiplied by what it reads, and added up: x' A x, which
      may be as small as its terms are large.

    In cases 2 and 3 moves and a bias may lie between; that stays float32 with it.

    Args:
      graph: one function.
      typed: its nodes.
      format: the 16-bit type.
    """
    if not any(map(_is_product, typed.values())):
        return {}
    walk = _Walk(graph, typed, format)
    found: dict[str, Reason] = {}
    for name in graph.order:
        found |= walk.take(name)
    return found


class _Whole(NamedTuple):
    """A tensor of whole numbers.

    Attributes:
      constant: whether it is computed of constants alone.
      unit: whether all are 0, 1 or -1.
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


class _Walk:
    """What is known of the nodes so far, in the order of a graph.

    Args:
      graph, typed, format: as of `exact_products`.
    """

    def __init__(
        self, graph: ir.Graph, typed: Mapping[str, Typed], format: Format
    ) -> None:
        self._graph, self._typed, self._format = graph, typed, format
        self._whole: dict[str, _Whole] = {}
        self._roots: dict[str, _Root] = {}
        self._squares: dict[str, str] = {}  # the product in each x * (A x)

    def take(self, name: str) -> dict[str, Reason]:
        """Takes the next node; returns what is refused because of it."""
        view = self._typed[name]
        sources = [source for source, _ in _floats(view)]
        exact = self._read_exactly(view, sources)
        found = dict.fromkeys(exact, Reason("decision", name))
        if _is_product(view):
            self._roots[name] = _Root(name)
            if self._counts(view, [self._whole.get(source) for source in sources]):
                found[name] = Reason("count", "products of whole numbers, which count")
            return found
        made = self._made_whole(view, sources)
        root = _root(view, sources, self._roots)
        if made is not None:
            self._whole[name] = made
        elif root is not None:
            self._roots[name] = root
        elif view.facts.kind is Kind.PRODUCT and len(sources) == 2:
            self._note_square(name, *sources)
        elif view.facts.sums and sources and sources[0] in self._squares:
            found[self._squares[sources[0]]] = Reason("cancels", name)
        return found

    def _read_exactly(self, view: Typed, sources: list[str]) -> set[str]:
        """The products, and what adds a bias to them, that a node reads exactly."""
        known = [self._roots[source] for source in sources if source in self._roots]
        nodes = {root.product for root in known}
        if len(nodes) != 1:
            return set()
        nodes.update(name for root in known for name in root.sums)
        if _is_rounded(view):
            return nodes
        if not _compares(view) or not _is_counted(self._graph, self._typed, view):
            return set()
        others = [source for source in sources if source not in self._roots]
        numbers = (self._typed.get(source) for source in others)
        if all(other is not None and _is_threshold(other) for other in numbers):
            return nodes
        return set()

    def _counts(self, view: Typed, operands: list[_Whole | None]) -> bool:
        """Whether a product gives counts that the type may not hold."""
        known = [each for each in operands if each is not None]
        if len(known) < 2 or len(known) < len(operands):
            return False
        if all(each.constant for each in known):
            return False
        terms = products_added(self._graph, view)
        if terms is None or not all(each.unit for each in known):
            return True
        return terms > self._format.counts

    def _made_whole(self, view: Typed, sources: list[str]) -> _Whole | None:
        """What a node makes of whole numbers, None if others.

        Args:
          view: the node.
          sources: that give it floating-point tensors.
        """
        kind = view.facts.kind
        if kind is Kind.CAST and view.ins[0].type in _DISCRETE:
            return _Whole(False, view.ins[0].type == ir.BOOL)
        if kind is Kind.CONSTANT:
            return _constant(view) if view.outs[0].type == ir.FLOAT else None
        if kind in (Kind.ROUND, Kind.SIGN) and sources:
            return _Whole(False, kind is Kind.SIGN)
        if not sources or not all(source in self._whole for source in sources):
            return None
        given = [self._whole[source] for source in sources]
        constant = all(each.constant for each in given)
        unit = all(each.unit for each in given)
        if kind is Kind.PRODUCT or view.facts.adds or view.facts.sums:
            return _Whole(constant, unit and kind is Kind.PRODUCT)
        if not view.facts.moves:
            return None
        names = {name for name, _ in view.node.inputs} - set(sources)
        known = (self._typed.get(name) for name in names)
        chosen = any(each is None or not _is_constant(each) for each in known)
        return _Whole(constant and not chosen, unit)

    def _note_square(self, name: str, one: str, other: str) -> None:
        for made, read in ((one, other), (other, one)):
            root = self._roots.get(made)
            if root is not None and _reads(self._typed, root.product, read):
                self._squares[name] = root.product


def _constant(view: Typed) -> _Whole | None:
    values = view.node.tensor()
    if values is None or not values.size:
        return None
    values = rounding.distinct(values)
    first = values.flat[0]
    if first != np.rint(first) or not np.array_equal(values, np.rint(values)):
        return None  # mostly told by the first
    return _Whole(True, bool(np.abs(values).max() <= 1))


def _root(view: Typed, sources: list[str], roots: Mapping[str, _Root]) -> _Root | None:
    """The product that a node moves the results of, or adds a bias to."""
    found = {roots.get(source) for source in sources}
    if view.facts.moves:
        return next(iter(found)) if len(found) == 1 else None
    known = [each for each in found if each is not None]
    if view.facts.adds and len(known) == 1 and not known[0].sums:
        return _Root(known[0].product, (view.node.name,))
    return None


def _is_threshold(view: Typed) -> bool:
    """Whether a node is a constant, and not 0: no rounding changes a sign."""
    return _is_constant(view) and bool(np.any(rounding.distinct(view.node.tensor())))


def _is_rounded(view: Typed) -> bool:
    """Whether a node makes whole numbers of its first operand, or a remainder."""
    if view.facts.kind is Kind.CAST:
        return view.ins[0].type in ir.FLOATS and view.outs[0].type in ir.INTEGERS
    floats = bool(view.ins) and view.ins[0].type in ir.FLOATS
    return floats and view.facts.kind in (Kind.ROUND, Kind.REMAINDER)


def _reads(typed: Mapping[str, Typed], product: str, name: str) -> bool:
    """Whether a product reads a tensor, but for moves of either (the nearest few)."""
    start = set(_moved(typed, name))
    operands = (source for source, _ in _floats(typed[product]))
    return any(not start.isdisjoint(_moved(typed, one)) for one in operands)


def _moved(typed: Mapping[str, Typed], name: str) -> Iterator[str]:
    """A tensor's node and those that it was moved from, the nearest few."""
    for _ in range(_FEW):
        yield name
        view = typed.get(name)
        sources = [] if view is None or not view.facts.moves else [*_floats(view)]
        if len(sources) != 1:
            return
        name = sources[0][0]


def _compares(view: Typed) -> bool:
    """Whether a node compares two floating-point tensors, element by element."""
    floats = [slot.type in ir.FLOATS for slot in view.ins]
    return [slot.type for slot in view.outs] == [ir.BOOL] and floats == [True, True]


def _is_counted(graph: ir.Graph, typed: Mapping[str, Typed], view: Typed) -> bool:
    """Whether truth values are added up: cast to numbers, moved, and masked maybe."""
    pending, seen = [(view.node.name, False)], {view.node.name}
    for at, cast in pending:
        if len(pending) > _NEAR:
            return False
        for reader, _ in graph.readers.get((at, 0), ()):
            view = typed[reader]
            if cast and view.facts.sums:
                return True
            onward = view.facts.kind is Kind.CAST or view.facts.moves
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


def _floats(view: Typed) -> Iterator[ir.Edge]:
    pairs = zip(view.node.inputs, view.ins, strict=False)
    return (edge for edge, slot in pairs if slot.type in ir.FLOATS)
