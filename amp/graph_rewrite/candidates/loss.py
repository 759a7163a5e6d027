"""The loss stays float32, and so do results that a sum after all products gives.

Which nodes lie where is found by `passes`; only the rule is here.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.passes import Passes
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_AFTER = Reason("loss", "after the last product of the forward pass")
_BEFORE = Reason("loss", "before the first product of the backward pass")
_RESULT = Reason("result", "a sum after the last product, or what is computed from it")


def loss(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    passes: Passes,
) -> dict[Member, Reason]:
    """Refuses what computes the loss, and the gradient of the loss.

    In a module that is differentiated these are, in the forward pass, the nodes that no
    product follows, and in a backward pass those that lead to its first products. The
    cast then stands on the output of the last product, and on the operand of the first
    product of the backward pass: targets, weights of samples and the differences to
    them are not rounded. A node that moves one tensor, or moves operands of a product,
    rounds nothing that the product does not round, and is not refused. Neither is one
    that only reads a shape, nor what a backward pass computes after its last product.

    In inference these are the sums after the last product and what follows them: there
    a bias of 300 is added to what the products give, and nothing would make its
    rounding good.
    """
    if not passes.differentiated:
        return _results(graphs, typed, passes)
    found = {}
    for use, views in typed.items():
        for name, view in views.items():
            if view.row is None or view.row.role not in (Role.FOLLOW, Role.MOVE):
                continue
            reason = _reason(use, view, passes)
            if reason is not None:
                found[use, name] = reason
    return found


def _results(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    passes: Passes,
) -> dict[Member, Reason]:
    found: dict[Member, Reason] = {}
    for use, graph in graphs.items():
        for name in graph.order:
            if name in passes.upstream[use] or name not in passes.downstream[use]:
                continue
            view = typed[use][name]
            adds = view.facts.adds
            if adds or any((use, edge[0]) in found for edge in view.node.inputs):
                found[use, name] = _RESULT
    return found


def _reason(use: FunctionUse, view: Typed, passes: Passes) -> Reason | None:
    name = view.node.name
    if name in passes.order[use]:
        reason = _BEFORE if name in passes.opening[use] else None
        return None if _moves(view) else reason
    if name in passes.upstream[use]:
        return None
    values = [slot for slot in view.ins if slot.port not in view.facts.flows]
    alone = sum(slot.type == ir.FLOAT for slot in values) <= 1
    reads_shape = view.facts.kind is Kind.SHAPE
    return None if reads_shape or (_moves(view) and alone) else _AFTER


def _moves(view: Typed) -> bool:
    return view.row is not None and view.row.role is Role.MOVE
