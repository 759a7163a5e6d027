"""Which nodes may be 16-bit in one function: white-list, kernels and hazards.

Every node that is refused gets a `Reason`. First the policy, the op table and the
kernels are asked, one node at a time; then `hazards`: what hands on a TensorArray's
flow, and arithmetic that only updates variables, is only summed to a scalar, or only
leads to a discrete choice (an index, a mask, a target). What needs all functions at
once is `analysis`' matter. No cost and no change to the graph may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.context import (
    Context,
    Typed,
    is_low,
    turning,
)
from amp.graph_rewrite.candidates.hazards import (
    decisions,
    flows,
    sinks,
)
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import Role, facts
from amp.graph_rewrite.plan import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one function, and why the other nodes are none.

    Attributes:
      typed: every node with its types.
      allowed: the nodes that may become 16-bit, with the reason.
      already: the nodes that are 16-bit in the graph as given.
      refused: the other nodes with float32 tensors, with the reason.
    """

    typed: Mapping[str, Typed]
    allowed: Mapping[str, Reason]
    already: frozenset[str]
    refused: Mapping[str, Reason]

    def refusing(self, reasons: Mapping[str, Reason]) -> Candidates:
        """The candidates without some nodes, with the reason for each of those."""
        allowed = {n: why for n, why in self.allowed.items() if n not in reasons}
        refused = {**self.refused, **reasons}
        return dataclasses.replace(self, allowed=allowed, refused=refused)


def find_eligible(
    graph: ir.Graph,
    context: Context,
    typed: Mapping[str, Typed],
    products: Container[str],
    *,
    timed: Mapping[str, Reason],
) -> Candidates:
    """Runs the first two phases on one function.

    Args:
      graph: the function.
      context: of the use.
      typed: the graph's nodes.
      products: nodes that compute a product, or call a function that does.
      timed: its readers of v1 references (`hazards.references`).

    Returns:
      The candidates. All of `allowed` have the reason "unreached" until `propagate`
      reaches them.
    """
    already, floats = set(), []
    refused: dict[str, Reason] = {}
    for name, view in typed.items():
        if is_low(view, context.format.number):
            already.add(name)
        elif view.float32:
            floats.append(name)
            reason = eligible(view, context)
            if reason is not None:
                refused[name] = reason
    refused = {**timed, **refused}
    refused |= flows(graph, typed)
    refused |= sinks(graph, typed, refused)
    refused |= decisions(graph, typed, refused, products)
    unreached = Reason("unreached", "no product in 16 bits upstream")
    free = {name: unreached for name in floats if name not in refused}
    return Candidates(typed, free, frozenset(already), refused)


def eligible(view: Typed, context: Context) -> Reason | None:
    """Why a node cannot be 16-bit whatever its neighbours are, or None if it can.

    Case 1: the policy or the user's code keeps it, or it is fed. Case 2: it is
    downstream of an unscale marker. Case 3: the policy denies its op, or its op is not
    on the white-list or always float32. Case 4: no type attribute can become 16-bit, or
    no kernel exists. Case 5: it is placed on another kind of device than the plan is
    for, itself or by a call of its function; prices say nothing of that one. Case 6:
    the module as a whole is to stay float32.
    """
    node, row, policy = view.node, view.row, context.policy
    if node.kept:
        return _kept(node)
    if policy.keep and policy.keeps(node.name):
        return Reason("keep", f"a pattern of keep={policy.keep}")
    if node.name in context.fed:
        return Reason("fed", node.name)
    if node.name in context.behind:
        return Reason("unscale", node.name)
    if node.op in policy.deny:
        return Reason("deny", node.op)
    if row is None:
        return Reason("unlisted", _of_unlisted(view, context))
    if row.role is Role.KEEP:
        return Reason("listed", row.why)
    low = turning(view, context.format.number)
    if not low:
        return Reason(
            "unlisted", f"{node.op} without a float32 attribute that may turn"
        )
    if not row.same_list and any(slot.type == ir.RESOURCE for slot in view.ins):
        return Reason("variable", node.op)
    if context.held is not None:
        return context.held
    return _check_kernel(view, low, context)


def _of_unlisted(view: Typed, context: Context) -> str:
    """An op that nothing is known of; and whether it has a 16-bit kernel at all."""
    op = view.node.op
    known = context.lookup(op)
    attrs = () if known is None else known.allowed
    low = {a: context.format.number for a in attrs if ir.FLOAT in view.node.types(a)}
    if not low or _has_kernel(view.node, low, context):
        return op
    return f"{op}, without a kernel in {context.format.name} on {context.device_type}"


def _kept(node: ir.Node) -> Reason:
    """Who keeps a node that is marked to stay float32."""
    who = node.text(ir.KEEP)
    if who == ir.OPTIMIZER:
        return Reason("optimizer", "the update of an optimizer")
    if who == ir.UNGUARDED:
        return Reason("unguarded", "taken by no variable, or a jacobian")
    if who == ir.CUSTOM:
        return Reason("custom", "the graph may be differentiated")
    return Reason("keep", "amp.keep_float32()")


def _check_kernel(view: Typed, low: dict[str, int], context: Context) -> Reason | None:
    node, device = view.node, context.device_type
    # XLA compiles a graph for one device, whatever its nodes say.
    place = context.called_on if context.xla else node.device or context.called_on
    if not context.policy.emulate and context.is_elsewhere(place):
        return Reason("device", f"{place}, where the plan is for a {device}")
    if _has_kernel(node, low, context):
        return None
    return Reason("kernel", f"{node.op} in {context.format.name} on {device}")


def _has_kernel(node: ir.Node, low: dict[str, int], context: Context) -> bool:
    """Whether an op can be computed once its type attributes are changed to `low`."""
    if context.policy.emulate:
        return op_schema.accepts(node.op, low)
    if context.xla:
        compiles = not facts(node.op).float32_under_xla
        return compiles and op_schema.accepts(node.op, low)
    return op_schema.has_kernel(node, context.device_type, low)
