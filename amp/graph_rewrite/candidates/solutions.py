"""What a matrix is computed from that is factored, inverted or solved by, and read for.

Case 4 of `conditioning`; no other node is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.upstream import COPIES
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Kind, Role, facts
from amp.graph_rewrite.plan import Reason

_TURNING = frozenset({Role.COMPUTE, Role.FOLLOW, Role.MOVE})


def solutions(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Refuses all that is between such a matrix and the nearest products, and these.

    Args:
      graph: one function.
      typed: its nodes.
    """
    if all(facts(op).kind is not Kind.SOLVE for op in graph.ops):
        return {}
    return _before(graph, typed) | _behind(graph, typed)


def _before(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """The products that compute a matrix, and all that is between."""
    found: dict[str, Reason] = {}
    reached: dict[str, Reason] = {}
    for name in reversed(graph.order):
        view = typed[name]
        role, reason = view.facts.role, reached.get(name)
        if reason is not None and role in _TURNING:
            found[name] = reason
        if view.facts.kind is Kind.SOLVE:
            reason = reason or Reason("solve", name)
        if reason is None or role is Role.COMPUTE:
            continue
        for (source, _), slot in zip(view.node.inputs, view.ins, strict=False):
            if slot.type in ir.FLOATS:
                reached.setdefault(source, reason)
    return found


def _behind(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """The products that read a solution, and all between, up to where it is summed."""
    found: dict[str, Reason] = {}
    reached: dict[str, Reason] = {}
    for name in graph.order:
        view = typed[name]
        pairs = zip(view.node.inputs, view.ins, strict=False)
        floats = (edge[0] for edge, slot in pairs if slot.type in ir.FLOATS)
        reason = next((reached[at] for at in floats if at in reached), None)
        if view.facts.kind is Kind.SOLVE:
            reached[name] = reason or Reason("solve", name)
        elif reason is not None and view.facts.role in _TURNING:
            found[name] = reason
            if view.facts.role is not Role.COMPUTE and not view.facts.sums:
                reached[name] = reason
        elif reason is not None and view.facts.kind in COPIES:
            reached[name] = reason
    return found
