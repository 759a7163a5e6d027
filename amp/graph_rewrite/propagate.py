"""Which nodes may be held in 16 bits: white-list, gates, hazards, then propagation.

Each phase is a function on explicit sets and gives every node it refuses a `Reason`. No
cost and no change to the graph may enter.

Order of the phases, each of which only narrows what the one before allowed:

1. `eligible`: the op table, the policy, the kernel gate, one node at a time;
2. `hazards.references` and `hazards.sinks`: readers of v1 references; arithmetic that
   only updates variables, only computes an integer, or is only summed to a scalar;
3. `hazards.ranges`: values that the 16-bit type cannot hold;
4. `reach`: downstream of a compute node, plus the move nodes that feed one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.graph_rewrite import ir, op_schema
from amp.graph_rewrite.context import Context, Typed, is_low, turning, type_ports
from amp.graph_rewrite.hazards import ranges, references, sinks
from amp.graph_rewrite.op_table import Role
from amp.graph_rewrite.plan import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The outcome: who may be low, who is already, and why the others may not."""

    typed: Mapping[str, Typed]
    allowed: Mapping[str, Reason]
    already: frozenset[str]
    refused: Mapping[str, Reason]


def candidates(graph: ir.Graph, context: Context) -> Candidates:
    """Runs the four phases on one graph."""
    typed = type_ports(graph, context)
    already = frozenset(n for n, t in typed.items() if is_low(t, context.format.number))
    refused: dict[str, Reason] = {}
    for name, view in typed.items():
        if name not in already and view.touches(ir.FLOAT):
            reason = eligible(view, context)
            if reason is not None:
                refused[name] = reason
    refused |= references(graph, typed, refused)
    refused |= sinks(graph, typed, refused)
    refused |= ranges(graph, typed, context, refused)
    free = {
        name
        for name, view in typed.items()
        if view.touches(ir.FLOAT) and name not in refused and name not in already
    }
    allowed = reach(graph, typed, free, already)
    for name in free - allowed.keys():
        refused[name] = Reason("unreached", "no product in 16 bits upstream")
    return Candidates(typed, allowed, already, refused)


def eligible(view: Typed, context: Context) -> Reason | None:
    """Why a node cannot be held in 16 bits whatever its neighbours do, or None.

    Case 1: the policy or the user's code keeps it. Case 2: it is downstream of a
    marker. Case 3: the table does not have it or keeps it. Case 4: nothing can turn.
    """
    node, row, policy = view.node, view.row, context.policy
    if node.flag(ir.KEEP):
        return Reason("keep", "keep_float32() or an optimizer")
    if policy.keep and policy.keeps(node.name):
        return Reason("keep", f"a pattern of keep={policy.keep}")
    if node.name in context.held:
        return Reason("fed", node.name)
    if node.name in context.behind:
        return Reason("unscale", node.name)
    if node.op in policy.deny:
        return Reason("deny", node.op)
    if row is None:
        return Reason("unlisted", node.op)
    if row.role is Role.KEEP:
        return Reason("listed", row.why)
    if row.same_list:
        return Reason("list", "its list crosses a boundary in float32")
    low = turning(view, context.format.number)
    if not low:
        return Reason(
            "unlisted", f"{node.op} without a float32 attribute that may turn"
        )
    if any(slot.type == ir.RESOURCE for slot in view.ins):
        return Reason("variable", node.op)
    return _gate(view, low, context)


def _gate(view: Typed, low: dict[str, int], context: Context) -> Reason | None:
    node = view.node
    device = "CPU" if "CPU:" in node.device.upper() else context.device_type
    turned = f"{node.op} in {context.format.name} on {device}"
    if context.policy.emulate or context.xla:
        if op_schema.accepts(node.op, low):
            return None
        return Reason("kernel", turned)
    return None if op_schema.has_kernel(node, device, low) else Reason("kernel", turned)


def reach(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    free: set[str],
    already: frozenset[str],
) -> dict[str, Reason]:
    """The free nodes downstream of a compute node through free nodes, and move nodes
    that feed one.

    Nodes that are low already, and casts between the types, are walked through as the
    free ones are, so that a second rewrite reaches what the first one did.
    """
    order = graph.order
    walked = {n for n in order if n in free or n in already or _bridges(typed[n])}
    found: dict[str, Reason] = {}
    for name in order:
        if name not in walked:
            continue
        view = typed[name]
        row = view.row
        if row is not None and row.role is Role.COMPUTE:
            found[name] = Reason("compute", row.why)
            continue
        source = next((edge[0] for edge in view.node.inputs if edge[0] in found), None)
        if source is not None:
            rule = "move" if _moves(view) else "follow"
            found[name] = Reason(rule, source)
    for name in reversed(order):
        view = typed[name]
        if name in found or name not in walked:
            continue
        if _moves(view) or _bridges(view):
            for index in range(len(view.outs)):
                for reader, _ in graph.readers.get((name, index), ()):
                    if reader in found:
                        found[name] = Reason("move", reader)
    return {name: reason for name, reason in found.items() if name in free}


def _moves(view: Typed) -> bool:
    return view.row is not None and view.row.role is Role.MOVE


def _bridges(view: Typed) -> bool:
    """Whether a node is a cast between float32 and a 16-bit type."""
    if view.node.op != "Cast" or not view.ins:
        return False
    ends = {view.ins[0].type, view.outs[0].type}
    return ir.FLOAT in ends and bool(ends & {ir.HALF, ir.BFLOAT16})
