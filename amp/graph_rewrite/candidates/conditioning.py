"""Nodes whose result the rounding of an operand would spoil, and what feeds them.

A rounding of an operand by u changes the result by u times the condition number of the
operation (Higham, Accuracy and Stability of Numerical Algorithms, ch. 1). Where that
may be large, the node reads float32: it is refused, and so is everything between it and
the products upstream, whose results are rounded in any case. A product that sums
nothing (the angles of rotary positions) is none of these, and one that sums squares or
has a fixed filter is a reduction like others. No values of a run are known here, and no
edge is followed into another function, but to a constant.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.upstream import Upstream
from amp.graph_rewrite.graph import ir, rounding
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

# A state that decays by the factor c is the sum of about 1 / (1 - c) terms, and rounded
# as often: by u / (1 - c) of itself. More than this is too much.
_DECAY = 1 / 16
# How many edges are looked at upstream of an input with a pole, for a difference.
_CLOSE = 4
# Edges that an operand is computed from, as `Upstream.behind` gives them.
_Way: TypeAlias = Mapping[ir.Edge, tuple[bool, bool]]
_NODE_OF = operator.itemgetter(0)  # the node of an edge


def conditioning(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    context: Context,
    flowing: Set[str],
    given: Collection[str] = (),
) -> dict[str, Reason]:
    """Refuses ill-conditioned nodes and what computes their operands.

    Case 1: a difference of values with a part in common that one of them has from a
      reduction: x - mean(x), a mean of squares less the square of a mean. Where that
      part is an operand of a product, the product is refused too, as its other terms
      read that operand as it is: |x|^2 - 2 x.y + |y|^2.
    Case 2: a function that is steep where its operand is large or near a pole or jump
      (`steep` in the op table), or has a pole and reads a difference: 1 / (1 - x).
    Case 3: a constant factor near 1, as the decay of a state.

    A gradient that flows back through the first two is as well-conditioned as any, so
    there they are not looked for. Its products with the operands of case 1 and 2 stay
    float32: their sum cancels as the difference does, and a pole comes back as a zero.

    An update reads gradients as products made them, however steep it is: of what feeds
    it, nothing is refused that it has through an unscale marker.

    Args:
      graph: one function.
      typed: its nodes, and the constants that it is given, by its arguments' names.
      context: of the use.
      flowing: the nodes of a backward pass that are downstream of its products.
      given: its arguments that hold tensors made outside of all functions.
    """
    found: dict[str, Reason] = {}
    sources = Upstream(graph, typed, given)
    summed = _summed(graph, sources)
    for name in graph.order:
        view, forward = typed[name], name not in flowing
        if not view.float32:
            continue
        if forward and _is_steep(view, sources, context):
            found[name] = Reason("steep", name)
        elif view.facts.kind is Kind.PRODUCT and _decays(view, sources, context):
            found[name] = Reason("decay", name)
        elif forward and name in summed and (ways := _ways(view, sources)):
            if _cancels(view, ways):
                found[name] = Reason("cancels", name)
            elif name not in context.updates:
                for product in _sharing(view, ways, sources):
                    found[name] = found[product] = Reason("cancels", name)
    feeding = _feeding(graph, sources, found, context.updates)
    mirrored = _mirrored(graph, sources, feeding, flowing)
    return found | feeding | mirrored


def _summed(graph: ir.Graph, sources: Upstream) -> set[str]:
    """The nodes that are computed from a sum, by no product: others cannot cancel."""
    found: set[str] = set()
    for name in graph.order:
        view = sources.typed[name]
        if sources.ends(view):
            continue
        if sources.sums(view) or not found.isdisjoint(map(_NODE_OF, view.node.inputs)):
            found.add(name)
    return found


def _is_steep(view: Typed, sources: Upstream, context: Context) -> bool:
    row = view.facts
    if not (row.steep or row.singular) or view.node.op in context.policy.allow:
        return False
    return row.steep or _at_pole(view, sources)


def _decays(view: Typed, sources: Upstream, context: Context) -> bool:
    error = 0.5 / context.format.counts
    for name, _ in sources.of(view):
        source = sources.typed.get(name)
        if source is not None and source.facts.kind is Kind.CONSTANT:
            values = rounding.distinct(source.node.tensor())
            off = np.abs(values.astype(np.float64) - 1.0)
            if np.any((off > 0) & (error > _DECAY * off)):
                return True
    return False


def _at_pole(view: Typed, sources: Upstream) -> bool:
    """Whether an input at which an op has a pole is a difference, or close behind one.

    So is 1 + elu(x), where x is negative. A sum over many elements between the two
    takes a rounded 0 away.
    """
    for port in view.facts.singular:
        near = itertools.islice(sources.behind(view.node.inputs[port]), _CLOSE)
        for count, ((name, _), (reduced, _)) in enumerate(near):
            source = sources.typed.get(name)
            if source is None or reduced:
                continue
            if source.facts.subtracts:
                return len(source.ins) == 2  # a sign is no difference
            if source.facts.levels_off and count:
                return True
    return False


def _ways(view: Typed, sources: Upstream) -> list[_Way]:
    """What the operands of a sum or difference are computed from; [] of other nodes."""
    pair, kind = len(view.ins) == 2, view.facts.kind
    if not pair or kind not in (Kind.SUM, Kind.SQUARE) or view.facts.adds_gradients:
        return []
    return [dict(sources.behind(edge)) for edge in view.node.inputs]


def _cancels(view: Typed, ways: Sequence[_Way]) -> bool:
    """Whether a node subtracts what is computed from the same values by a reduction."""
    one, other = ways
    for edge in one.keys() & other.keys():
        (reduced, taken), (reduced_too, taken_too) = one[edge], other[edge]
        if reduced and (view.facts.subtracts or taken):
            return True
        if reduced_too and (view.facts.subtracts or taken_too):
            return True
    return False


def _sharing(view: Typed, ways: Sequence[_Way], sources: Upstream) -> list[str]:
    """Products of an operand whose squares, say, are added up and added to them.

    Of a node that adds or subtracts: one input is computed from a product, the other by
    a reduction from what that product reads.
    """
    found: list[str] = []
    if view.facts.kind is not Kind.SUM:
        return found
    for one, other in (ways, ways[::-1]):
        reduced = {edge for edge, (summed, _) in other.items() if summed}
        for (name, _), (summed, _) in one.items() if reduced else ():
            made = sources.typed.get(name)
            if made is None or summed or not sources.ends(made):
                continue
            if not reduced.isdisjoint(_operands(made, sources)):
                found.append(name)
    return found


def _operands(product: Typed, sources: Upstream) -> Iterator[ir.Edge]:
    """What a product reads, and what that is a constant times, or was moved from."""
    for edge in sources.of(product):
        yield edge
        view = sources.typed.get(edge[0])
        if view is not None and _is_scaled(view, sources):
            yield from sources.of(view)


def _is_scaled(view: Typed, sources: Upstream) -> bool:
    if view.facts.kind is not Kind.PRODUCT:
        return view.facts.role is Role.MOVE
    made = [sources.typed.get(name) for name, _ in sources.of(view)]
    return any(one is not None and one.facts.kind is Kind.CONSTANT for one in made)


def _feeding(
    graph: ir.Graph,
    sources: Upstream,
    found: Mapping[str, Reason],
    updates: Set[str],
) -> dict[str, Reason]:
    """What computes the operands of some nodes, up to products and other types.

    Of an update up to unscale markers, too. Walks again where a loop of TensorFlow 1
    goes back to what was walked before.
    """
    reached: dict[str, Reason] = {}
    back: set[str] = set()
    typed = sources.typed
    while True:
        _reach(graph, sources, found, updates, reached)
        known = len(back)
        back.update(n for n in reached if typed[n].facts.kind is Kind.NEXT_ITERATION)
        if len(back) == known:
            break
    return {n: why for n, why in reached.items() if typed[n].facts.role != Role.KEEP}


def _reach(
    graph: ir.Graph,
    sources: Upstream,
    found: Mapping[str, Reason],
    updates: Set[str],
    reached: dict[str, Reason],
) -> None:
    """One walk of `_feeding`, which adds to `reached`."""
    typed = sources.typed
    for name in reversed(graph.order):
        reason = found.get(name) or reached.get(name)
        if reason is None:
            continue
        for edge, slot in zip(typed[name].node.inputs, typed[name].ins, strict=False):
            made = typed.get(edge[0])
            if slot.type not in ir.FLOATS or made is None:
                continue
            if name in updates and made.node.flag(ir.UNSCALE):
                continue
            if made.facts.copies or _may_spoil(sources, edge, reason):
                reached.setdefault(edge[0], reason)


def _may_spoil(sources: Upstream, edge: ir.Edge, reason: Reason) -> bool:
    """Whether a float32 output of a node may have been rounded in it or before it.

    Not in what is computed beside a 16-bit output: moments of a batch. Behind what is
    float32 by itself only steep functions look: from the differences in an optimizer
    it would go through the loss to every logit.
    """
    view, index = sources.typed[edge[0]], edge[1]
    row = view.row
    if row is None or row.role is Role.KEEP:
        return row is not None and reason.rule == "steep"
    if sources.rounds(view):
        return False
    return view.outs[index].attr in row.attrs


def _mirrored(
    graph: ir.Graph,
    sources: Upstream,
    feeding: Mapping[str, Reason],
    flowing: Set[str],
) -> dict[str, Reason]:
    """Gradients times the operands of cases 1 and 2, up to where they are added up.

    The gradient of a convolution with a fixed filter is one with the same filter.
    """
    found: dict[str, Reason] = {}
    typed, filters = sources.typed, sources.filters
    held = {filters[name]: why for name, why in feeding.items() if name in filters}
    for name in graph.order:
        view = typed[name]
        if filters.get(name) in held:
            found[name] = held[filters[name]]
        if name not in flowing or view.row is None or sources.rounds(view):
            continue
        for source, _ in sources.of(view):
            reason = found.get(source)
            if reason is not None and typed[source].facts.adds_gradients:
                continue
            if reason is None and source not in flowing:
                reason = feeding.get(source)
            if reason is not None and reason.rule != "decay":
                found[name] = reason
    return found
