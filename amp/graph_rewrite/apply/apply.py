"""Builds the graph that a plan describes; nothing is decided here.

There are two forms of a plan: native (16-bit kernels, with casts between the types) and
emulated (float32 kernels, with every tensor that would be 16-bit rounded).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from amp.graph_rewrite.apply.casts import Casts, free_name
from amp.graph_rewrite.candidates.context import Context, Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.candidates.stand_ins import is_merged, stand_in
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph import bridges, calls, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize import loop_invariants
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.plan import Plan


def apply_plans(
    priced: Priced, plans: Mapping[FunctionUse, Plan]
) -> dict[FunctionUse, ir.Graph]:
    """The graph that the plan of each use describes.

    A use whose plan changes nothing keeps its graph. Fetched tensors are float32.
    """
    graphs = {}
    for use, one in priced.analysis.uses.items():
        graph, plan, context = one.graph, plans[use], one.context
        if plan.low or plan.interface:
            graph = apply(graph, plan, one.found, context)
            if context.fetched:
                graph = restore_fetched(
                    graph, context.fetched, plan, one.found, context
                )
        graphs[use] = graph
    return graphs


def apply(graph: ir.Graph, plan: Plan, found: Candidates, context: Context) -> ir.Graph:
    """The graph that a plan describes, native or emulated as the policy says.

    Args:
      graph: the graph that was planned.
      plan: the plan.
      found: the candidates of the graph, for the types of its nodes.
      context: of the use.
    """
    make = emulated if context.policy.emulate else native
    return make(graph, plan, found, context)


def native(
    graph: ir.Graph, plan: Plan, found: Candidates, context: Context
) -> ir.Graph:
    """The graph with 16-bit kernels and with casts where types differ."""
    nodes = dict(graph.nodes)
    interface = plan.interface
    casts = Casts(nodes, plan.dtype, barrier=False, fed=context.fed)
    for name, given in interface.given.items():
        casts.know_down((name, 0), (given, 0))

    def made_low(edge: ir.Edge) -> bool:
        return _made_low(edge, plan, found)

    for name in graph.nodes:
        view = found.typed[name]
        turned = plan.attrs.get(name, ())
        takes = interface.takes.get(name, ())
        inputs = list(view.node.inputs)
        for index, slot in enumerate(view.ins):
            if slot.type != ir.FLOAT:
                continue
            wants_low = slot.attr in turned or index in takes
            edge = inputs[index]
            if (name, index) in plan.late:
                low = edge if made_low(edge) else casts.down(edge)
                inputs[index] = casts.late(low, plan.late[name, index])
            elif wants_low and not made_low(edge):
                inputs[index] = casts.down(edge)
            elif made_low(edge) and not wants_low:
                inputs[index] = casts.up(edge)
        if turned or tuple(inputs) != view.node.inputs:
            updates: dict[str, ir.Value] = {
                a: _turned(view.node, a, plan.dtype) for a in turned
            }
            nodes[name] = view.node.changed(tuple(inputs), updates)
        merged = is_merged(graph, found.typed, view.node, plan.low, context)
        form = stand_in(graph, view, context) if turned and not merged else None
        if form is not None:
            axes = casts.integers(nodes[name], "axes", form.axes)
            nodes[name] = form.node(nodes[name], plan.dtype, axes)
        if takes or name in interface.gives or name in interface.adds:
            added = [
                (e if made_low(e) else casts.down(e), plan.dtype, graph.shape(e))
                for e in interface.adds.get(name, ())
            ]
            nodes[name] = _call(nodes[name], plan, added)
    return _with_boundary(graph.with_nodes(nodes), plan, casts, made_low)


def _made_low(edge: ir.Edge, plan: Plan, found: Candidates) -> bool:
    """Whether a plan makes the tensor on an edge 16-bit."""
    name, index = edge
    if name in plan.low:
        return _turns(found.typed[name], index, plan)
    interface = plan.interface
    return name in interface.args or index in interface.gives.get(name, ())


def _call(
    node: ir.Node, plan: Plan, added: Sequence[tuple[ir.Edge, int, ir.Shape]]
) -> ir.Node:
    """A calling node with the types and the further arguments of its functions."""
    call, interface = calls.CALLS[node.op], plan.interface
    takes = {index - call.skip for index in interface.takes.get(node.name, ())}
    turning = [(call.takes, takes), (call.gives, interface.gives.get(node.name, ()))]
    updates: dict[str, ir.Value] = {
        attr: ir.Types(
            tuple(
                plan.dtype if index in turned else number
                for index, number in enumerate(node.types(attr))
            )
        )
        for attr, turned in turning
    }
    return calls.extended(node.changed(updates=updates), call, added)


def _with_boundary(
    graph: ir.Graph, plan: Plan, casts: Casts, made_low: Callable[[ir.Edge], bool]
) -> ir.Graph:
    """The graph with the arguments and results that the plan's interface describes."""
    interface, number = plan.interface, plan.dtype
    results = []
    for index, result in enumerate(graph.results):
        edge, kind = result.edge, result.type
        if index in interface.results:
            edge, kind = edge if made_low(edge) else casts.down(edge), number
        elif made_low(edge):
            edge = casts.up(edge)
        results.append(ir.Result(result.name, kind, edge))
    args = tuple(
        ir.Argument(arg.name, number if arg.name in interface.args else arg.type)
        for arg in graph.args
    )
    turned = dataclasses.replace(graph, args=args, results=tuple(results))
    if not interface.given:
        return turned
    added = tuple(ir.Argument(new, number) for new in interface.given.values())
    whole = {(new, 0): (name, 0) for name, new in interface.given.items()}
    wider = loop_invariants.widened(turned, added, results=interface.returns)
    return wider.with_shapes(lambda known: lambda edge: known(whole.get(edge, edge)))


def emulated(
    graph: ir.Graph, plan: Plan, found: Candidates, context: Context
) -> ir.Graph:
    """The graph with float32 kernels and the plan's tensors rounded to 16 bits."""
    nodes = dict(graph.nodes)
    casts = Casts(nodes, plan.dtype, barrier=context.xla, fed=context.fed)
    name16 = ir.DTYPE_NAMES[plan.dtype]
    interface = plan.interface

    def rounded(edge: ir.Edge) -> bool:
        outs = found.typed[edge[0]].outs if edge[0] in found.typed else ()
        if (
            edge[1] < len(outs)
            and outs[edge[1]].port in found.typed[edge[0]].facts.opaque
        ):
            return False
        return _made_low(edge, plan, found)

    def exact(edge: ir.Edge) -> bool:  # values that are rounded already
        view = found.typed.get(edge[0])
        if view is None or edge[1] in interface.gives.get(edge[0], ()):
            return True  # an argument or a call's result: rounded in the other function
        return view.row is not None and view.row.role is Role.MOVE

    for name in graph.nodes:
        view = found.typed[name]
        turned = plan.attrs.get(name, ())
        takes = interface.takes.get(name, ())
        inputs = list(view.node.inputs)
        for index, slot in enumerate(view.ins):
            edge = inputs[index]
            if slot.port in view.facts.opaque:
                continue
            low = slot.attr in turned or index in takes or (name, index) in plan.late
            wanted = slot.type == ir.FLOAT and (rounded(edge) or low)
            if wanted and not (rounded(edge) and exact(edge)):
                inputs[index] = casts.rounded(edge)
        updates: dict[str, ir.Value] = {ir.EMULATED: name16} if name in plan.low else {}
        if updates or tuple(inputs) != view.node.inputs:
            nodes[name] = view.node.changed(tuple(inputs), updates)
    results = []
    for index, result in enumerate(graph.results):
        edge = result.edge
        if (rounded(edge) or index in interface.results) and not (
            rounded(edge) and exact(edge)
        ):
            edge = casts.rounded(edge)
        results.append(dataclasses.replace(result, edge=edge))
    return graph.with_nodes(nodes, tuple(results))


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


def restore_fetched(
    graph: ir.Graph,
    names: frozenset[str],
    plan: Plan,
    found: Candidates,
    context: Context,
) -> ir.Graph:
    """Makes the tensors that a caller fetches by name float32 again.

    A fetched 16-bit node is renamed, and an IdentityN of float32 casts gets its name,
    with the attribute `ir.KEEP`, so that no later rewrite converts it.

    Args:
      graph: the result of `apply`.
      names: the fetched nodes.
      plan, found, context: as in `apply`.
    """
    suffix = ir.DTYPE_NAMES[plan.dtype]
    renamed = {
        name: free_name(name, suffix, graph.nodes) for name in sorted(names & plan.low)
    }

    def moved(node: ir.Node) -> ir.Node:
        if any(edge[0] in renamed for edge in node.inputs):
            node = node.changed(
                tuple((renamed.get(e[0], e[0]), e[1]) for e in node.inputs)
            )
        if node.name not in renamed:
            return node
        return dataclasses.replace(node, name=renamed[node.name], pristine=False)

    nodes = {renamed.get(name, name): moved(node) for name, node in graph.nodes.items()}
    casts = Casts(nodes, plan.dtype, barrier=context.xla, fed=context.fed)
    for name, node in graph.nodes.items():
        made = name not in found.typed and bridges.is_up(node, plan.dtype)
        if made and not node.has(ir.LATE):
            casts.know_up(nodes[name].inputs[0], (name, 0))
    back = casts.rounded if context.policy.emulate else casts.up
    for name, new in renamed.items():
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
    before = {new: name for name, new in renamed.items()}

    def of_renamed(known: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: known((before.get(edge[0], edge[0]), edge[1]))

    return graph.with_shapes(of_renamed).with_nodes(nodes)
