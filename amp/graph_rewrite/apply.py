"""`apply`: makes the graph that a plan describes. It decides nothing.

Two forms of the same plan: native (16-bit kernels, casts at the borders) and emulated
(float32 kernels, every tensor that the plan holds in 16 bits rounded).
"""

from __future__ import annotations

import dataclasses

from amp.graph_rewrite import ir, op_schema
from amp.graph_rewrite.casts import Casts
from amp.graph_rewrite.context import Context, Typed
from amp.graph_rewrite.op_table import Role
from amp.graph_rewrite.plan import Plan
from amp.graph_rewrite.propagate import Candidates


def apply(graph: ir.Graph, plan: Plan, found: Candidates, context: Context) -> ir.Graph:
    """The graph that the plan describes, in the form that the policy asks for.

    Args:
      graph: the graph that was planned.
      plan: what to do.
      found: the ports' types, from planning.
      context: as in planning.
    """
    make = emulated if context.policy.emulate else native
    return make(graph, plan, found, context)


def native(
    graph: ir.Graph, plan: Plan, found: Candidates, context: Context
) -> ir.Graph:
    """The graph with the plan's nodes in 16-bit kernels."""
    nodes = dict(graph.nodes)
    casts = Casts(nodes, plan.dtype, barrier=False)

    def made_low(edge: ir.Edge) -> bool:
        return edge[0] in plan.low and _turns(found.typed[edge[0]], edge[1], plan)

    for name in graph.nodes:
        view = found.typed[name]
        turned = plan.attrs.get(name, ())
        inputs = list(view.node.inputs)
        for index, slot in enumerate(view.ins):
            if slot.type != ir.FLOAT:
                continue
            wants_low = slot.attr in turned
            edge = inputs[index]
            if wants_low and not made_low(edge):
                inputs[index] = casts.down(edge)
            elif made_low(edge) and not wants_low:
                inputs[index] = casts.up(edge)
        if turned or tuple(inputs) != view.node.inputs:
            updates: dict[str, ir.Value] = {
                a: _turned(view.node, a, plan.dtype) for a in turned
            }
            nodes[name] = view.node.changed(tuple(inputs), updates)
    results = tuple(
        ir.Result(r.name, r.type, casts.up(r.edge) if made_low(r.edge) else r.edge)
        for r in graph.results
    )
    return graph.with_nodes(nodes, results)


def emulated(
    graph: ir.Graph, plan: Plan, found: Candidates, context: Context
) -> ir.Graph:
    """The graph with float32 kernels and the plan's tensors rounded to 16 bits."""
    nodes = dict(graph.nodes)
    casts = Casts(nodes, plan.dtype, barrier=context.xla)
    name16 = ir.DTYPE_NAMES[plan.dtype]

    def rounded(edge: ir.Edge) -> bool:
        return edge[0] in plan.low and _turns(found.typed[edge[0]], edge[1], plan)

    def exact(edge: ir.Edge) -> bool:  # moving rounded values needs no new rounding
        view = found.typed.get(edge[0])
        return view is not None and view.row is not None and view.row.role is Role.MOVE

    for name in graph.nodes:
        view = found.typed[name]
        turned = plan.attrs.get(name, ())
        inputs = list(view.node.inputs)
        for index, slot in enumerate(view.ins):
            edge = inputs[index]
            wanted = slot.type == ir.FLOAT and (rounded(edge) or slot.attr in turned)
            if wanted and not (rounded(edge) and exact(edge)):
                inputs[index] = casts.rounded(edge)
        updates: dict[str, ir.Value] = {ir.EMULATED: name16} if name in plan.low else {}
        if updates or tuple(inputs) != view.node.inputs:
            nodes[name] = view.node.changed(tuple(inputs), updates)
    results = tuple(
        ir.Result(
            r.name,
            r.type,
            casts.rounded(r.edge) if rounded(r.edge) and not exact(r.edge) else r.edge,
        )
        for r in graph.results
    )
    return graph.with_nodes(nodes, results)


def _turns(view: Typed, index: int, plan: Plan) -> bool:
    slot = view.outs[index]
    return slot.type == ir.FLOAT and slot.attr in plan.attrs[view.node.name]


def _turned(node: ir.Node, attr: str, number: int) -> ir.Value:
    known = op_schema.schema(node.op)
    types = node.types(attr)
    is_list = known is not None and attr not in known.defaults
    if is_list:
        return ir.Types(tuple(number if t == ir.FLOAT else t for t in types))
    return ir.Type(number)


def expose(
    graph: ir.Graph,
    names: frozenset[str],
    plan: Plan,
    found: Candidates,
    context: Context,
) -> ir.Graph:
    """Gives the tensors that a caller fetches by name back in float32.

    A fetched 16-bit node moves aside and an IdentityN of float32 values takes its name,
    marked to be kept, so that no later rewrite takes it for a node to convert.
    """
    suffix = f"amp_{ir.DTYPE_NAMES[plan.dtype]}"
    aside = {name: f"{name}/{suffix}" for name in sorted(names & plan.low)}

    def moved(node: ir.Node) -> ir.Node:
        if any(edge[0] in aside for edge in node.inputs):
            node = node.changed(
                tuple((aside.get(e[0], e[0]), e[1]) for e in node.inputs)
            )
        if node.name not in aside:
            return node
        return dataclasses.replace(node, name=aside[node.name], pristine=False)

    nodes = {aside.get(name, name): moved(node) for name, node in graph.nodes.items()}
    casts = Casts(nodes, plan.dtype, barrier=context.xla)
    back = casts.rounded if context.policy.emulate else casts.up
    for name, new in aside.items():
        view = found.typed[name]
        edges = tuple(
            back((new, index)) if _turns(view, index, plan) else (new, index)
            for index in range(len(view.outs))
        )
        updates: dict[str, ir.Value] = {
            "T": ir.Types(tuple(slot.type for slot in view.outs)),
            ir.KEEP: True,
        }
        device = nodes[new].device
        nodes[name] = ir.Node(name, "IdentityN", edges, (), device, None, updates)
    before = {new: name for name, new in aside.items()}

    def shape(edge: ir.Edge) -> ir.Shape:
        return graph.shape((before.get(edge[0], edge[0]), edge[1]))

    return dataclasses.replace(graph, shape=shape).with_nodes(nodes)
