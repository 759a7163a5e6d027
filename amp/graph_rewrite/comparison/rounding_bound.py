"""How large a relative error rounding explains, tensor by tensor.

A first-order bound. Say u is the unit roundoff of the 16-bit type, and that no
operation has a condition number above 1, so that it passes relative errors on no larger
than they came in. Then, with e(x) the bound of the relative error of a tensor x::

    e(argument), e(constant), e(variable) = 0
    e(x rounded to 16 bits)        = e(x) + u
    e(x + y), e(moved or selected) = max(e(x), e(y))
    e(f(x, y)) for any other f     = e(x) + e(y)
    e(x * x)                       = 2 e(x)
    e(x where c > 0)               = e(x) + sqrt(2 e(c))
    e(results of a loop, a branch) = the sum of e of its arguments, and u for each of
                                     its 16-bit nodes, each time it runs

By a comparison an element passes that would not, or the other way round, if it is less
than its error away from the limit. If the density of c there is at most one over its
size, those are 2 e(c) of all elements, and their norm is the root of that.

An error beyond the bound means that some operation amplified errors (a difference of
nearly equal values, a steep function), that values left the range of the type, or that
a kernel is wrong. Roundings partly cancel out, so that a sound twin stays well below.

No array is looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.comparison.pair import Pair
from amp.graph_rewrite.graph import bridges, calls, ir, op_schema
from amp.graph_rewrite.graph.loop_trips import LoopTrips
from amp.graph_rewrite.ops.op_table import Kind, Role, facts

# Beyond this no digit is left, so that a bound would say nothing.
MOST = 0.5
_MAXIMUM = frozenset({Kind.SUM, Kind.BIAS, Kind.IDENTITY, Kind.BUNDLE, Kind.MERGE})


def bounds(
    pair: Pair, unit: float, given: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The bound for what each node of the twin makes, by the node's name.

    Args:
      pair: the function and its twin.
      unit: the unit roundoff of the 16-bit type.
      given: the errors of arguments of the twin, and of nodes that take something from
        elsewhere, by name; 0 for the arguments that are missing.
    """
    twin = pair.twin.main
    lookup = op_schema.lookup_of(pair.twin)
    found: dict[str, float] = {**(given or {})}
    for name in (name for name in twin.order if name not in found):
        node = twin.nodes[name]
        errors = [found.get(edge[0], 0.0) for edge in node.inputs]
        error = _passed_on(node, errors)
        error += unit * _roundings(node, twin, pair, lookup)
        found[name] = min(error, MOST)
    return found


def _passed_on(node: ir.Node, errors: list[float]) -> float:
    if node.flag(ir.UNSCALE):  # by a factor of which only the exponent matters
        return errors[0]
    row = facts(node.op)
    choosers = row.chooses_by or row.kernel_compares
    if choosers:
        chosen = sum(error for i, error in enumerate(errors) if i in choosers)
        rest = [error for i, error in enumerate(errors) if i not in choosers]
        return max(rest, default=0.0) + math.sqrt(2.0 * chosen)
    if row.kind in _MAXIMUM or row.adds_gradients or row.role is Role.MOVE:
        return max(errors, default=0.0)
    return sum(errors) * (2.0 if row.kind is Kind.SQUARE else 1.0)


def _roundings(
    node: ir.Node, graph: ir.Graph, pair: Pair, lookup: op_schema.Lookup
) -> float:
    """How many roundings a node adds: its own, or those of the functions it calls."""
    if bridges.is_down(node, pair.number) or _is_folded(node, pair):
        return 1.0
    functions = pair.twin.functions
    call = calls.call_of(node, functions)
    if call is None:
        known = lookup(node.op)
        signature = op_schema.UNKNOWN if known is None else known.signature(node)
        exact = facts(node.op).role is Role.MOVE or facts(node.op).kind is Kind.CAST
        makes = any(slot.type == pair.number for slot in signature.outs)
        return 1.0 if makes and not exact else 0.0
    inside = sum(
        _roundings(each, callee, pair, lookup)
        for callee in _called(node, pair.twin)
        for each in callee.nodes.values()
    )
    trips = LoopTrips(pair.twin).of(graph, node) if call.loop else 1
    return inside * trips


def _is_folded(node: ir.Node, pair: Pair) -> bool:
    added = node.name not in pair.plain.main.nodes
    floating = node.types("dtype") in ((pair.number,), (ir.FLOAT,))
    return added and floating and facts(node.op).kind is Kind.CONSTANT


def _called(node: ir.Node, module: ir.Module) -> Iterator[ir.Graph]:
    call = calls.call_of(node, module.functions)
    for name in calls.callees_of(node, call) if call is not None else ():
        if name in module.functions:
            yield module.functions[name]
