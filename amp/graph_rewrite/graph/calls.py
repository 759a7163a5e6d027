"""Calls, branches and loops: what functions a graph reaches, what crosses into them.

Facts about call ops are rows of `CALLS`. No choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from amp.graph_rewrite.graph import ir, loop_trips

MUST_COMPILE = "_XlaMustCompile"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """An op that runs functions.

    Attributes:
      attrs: the attributes that name them.
      skip: leading inputs that are not passed on (a predicate, a branch index).
      loop: whether results come back as arguments; the last function is the body.
      takes, gives: the attributes with the types of what is passed and returned.
      always: whether its one function runs exactly once.
    """

    attrs: tuple[str, ...]
    skip: int = 0
    loop: bool = False
    takes: str = "Tin"
    gives: str = "Tout"
    always: bool = False


_ONCE = Call(("f",), always=True)
_LOOP = Call(("cond", "body"), loop=True, takes="T", gives="T")
_BRANCH = Call(("then_branch", "else_branch"), skip=1)
CALLS: Mapping[str, Call] = {
    "PartitionedCall": _ONCE,
    "StatefulPartitionedCall": _ONCE,
    "While": _LOOP,
    "StatelessWhile": _LOOP,
    "If": _BRANCH,
    "StatelessIf": _BRANCH,
    "Case": Call(("branches",), skip=1),
    "StatelessCase": Call(("branches",), skip=1),
}
_DIRECT = Call(())
_SHAPES = ("output_shapes", "_output_shapes")


def call_of(node: ir.Node, functions: Mapping[str, ir.Graph]) -> Call | None:
    """How a node calls, None if it does not (or only hands functions to a dataset)."""
    return _DIRECT if node.op in functions else CALLS.get(node.op)


def calls_once(op: str) -> bool:
    """Whether an op runs the one function that its attribute `f` names, once."""
    return op in CALLS and CALLS[op].always


def callees_of(node: ir.Node, call: Call) -> tuple[str, ...]:
    """The functions that a calling node names, in the order of its attributes."""
    if call is _DIRECT:
        return (node.op,)
    return tuple(name for attr in call.attrs for name in node.functions(attr))


def renamed(node: ir.Node, call: Call, names: Mapping[str, str]) -> ir.Node:
    """The calling node with its functions replaced as `names` says."""
    if call is _DIRECT:
        return dataclasses.replace(node, op=names.get(node.op, node.op), pristine=False)
    updates: dict[str, ir.Value] = {
        attr: ir.Functions(tuple(names.get(f, f) for f in node.functions(attr)))
        for attr in call.attrs
    }
    return node.changed(updates=updates)


def extended(
    node: ir.Node, call: Call, edges: Sequence[tuple[ir.Edge, int, ir.Shape]]
) -> ir.Node:
    """The calling node with more arguments: (edge, type, shape) of each.

    A loop gives them back as results.
    """
    types = node.types(call.takes) + tuple(number for _, number, _ in edges)
    updates: dict[str, ir.Value] = {call.takes: ir.Types(types)}
    for attr in _SHAPES:
        known = node.shapes(attr)
        if call.loop and known:
            updates[attr] = ir.Shapes((*known, *(shape for *_, shape in edges)))
    return node.changed(node.inputs + tuple(edge for edge, *_ in edges), updates)


class FunctionUse(NamedTuple):
    """A function as one kind of caller reaches it.

    Attributes:
      name: the function, "" for the main graph of a GraphDef.
      xla: whether XLA compiles it there.
    """

    name: str
    xla: bool


def uses_with_weights(module: ir.Module) -> dict[FunctionUse, float]:
    """Every use of a function from the main graph, with how often it runs a step.

    Callers stand before what they call. Functions called under `keep_float32` are left
    out.
    """
    order: list[FunctionUse] = []
    _visit(
        FunctionUse(module.main.name, MUST_COMPILE in module.main.flags),
        module,
        order,
        {},
    )
    order.reverse()
    weights = dict.fromkeys(order, 0.0)
    weights[order[0]] = 1.0
    for use in order:
        for node, call in calls(graph_of(module, use), module.functions):
            times = weights[use]
            if call.loop:
                times *= loop_trips.trips(module, graph_of(module, use), node)
            for callee in uses_of(node, call, use.xla, module.functions):
                weights[callee] += times
    return weights


def graph_of(module: ir.Module, use: FunctionUse) -> ir.Graph:
    """The graph that a use is a use of."""
    return module.main if use.name == module.main.name else module.functions[use.name]


def _visit(
    use: FunctionUse,
    module: ir.Module,
    order: list[FunctionUse],
    state: dict[FunctionUse, bool],
) -> None:
    """Depth first; a function that calls itself is met once."""
    state[use] = True
    for node, call in calls(graph_of(module, use), module.functions):
        for callee in uses_of(node, call, use.xla, module.functions):
            if callee not in state:
                _visit(callee, module, order, state)
    order.append(use)


def sites(
    module: ir.Module, uses: Mapping[FunctionUse, float]
) -> dict[tuple[FunctionUse, str], Site]:
    """The calls whose boundary may change, by caller and node.

    Each function is called from nowhere else (but as the same loop's or branch's other
    function) and run by what runs its caller, and every argument has its parameter.
    """
    found: dict[tuple[FunctionUse, str], Site] = {}
    callers: Counter[FunctionUse] = Counter()
    for use in uses:
        for node, call in calls(graph_of(module, use), module.functions):
            callees = tuple(uses_of(node, call, use.xla, module.functions))
            callers.update(callees)
            if call is _DIRECT or not callees or any(c.xla != use.xla for c in callees):
                continue
            passed = len(node.inputs) - call.skip
            if len(callees) == len(callees_of(node, call)) and all(
                len(graph_of(module, callee).args) == passed for callee in callees
            ):
                found[use, node.name] = Site(use, node, call, callees)
    return {
        key: site
        for key, site in found.items()
        if all(callers[callee] == 1 for callee in site.callees)
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A call of functions that are called from nowhere else.

    Attributes:
      use: the caller.
      node: the calling node.
      call: how it calls.
      callees: the functions, a loop's body last.
    """

    use: FunctionUse
    node: ir.Node
    call: Call
    callees: tuple[FunctionUse, ...]


def uses_of(
    node: ir.Node, call: Call, xla: bool, functions: Mapping[str, ir.Graph]
) -> Iterator[FunctionUse]:
    """The uses that a calling node in a graph (compiled by XLA or not) makes."""
    for name in callees_of(node, call):
        if name in functions:
            compiled = (
                xla or node.flag(MUST_COMPILE) or MUST_COMPILE in functions[name].flags
            )
            yield FunctionUse(name, compiled)


def calls(
    graph: ir.Graph, functions: Mapping[str, ir.Graph]
) -> Iterator[tuple[ir.Node, Call]]:
    """The calling nodes of a graph, but for those under `keep_float32`."""
    for node in graph.nodes.values():
        call = call_of(node, functions)
        if call is not None and not node.flag(ir.KEEP):
            yield node, call


def behind_markers(module: ir.Module) -> dict[str, frozenset[str]]:
    """By function, the nodes that are an unscale marker or downstream of one.

    Markers act across calls: a gradient unscaled in one function and applied in another
    is float32 in both. Solved as a least fixed point over arguments and results.
    """
    graphs = {graph.name: graph for graph in module.graphs()}
    graphs[module.main.name] = module.main
    if not any(n.flag(ir.UNSCALE) for g in graphs.values() for n in g.nodes.values()):
        return {name: frozenset() for name in graphs}
    state = {name: _Taint() for name in graphs}
    changed = True
    while changed:
        changed = False
        for graph in graphs.values():
            changed |= _taint(graph, state, module.functions)
    return {name: frozenset(taint.nodes) for name, taint in state.items()}


@dataclasses.dataclass(slots=True)
class _Taint:
    nodes: set[str] = dataclasses.field(default_factory=set)
    args: set[int] = dataclasses.field(default_factory=set)
    results: set[int] = dataclasses.field(default_factory=set)


def _taint(
    graph: ir.Graph,
    state: dict[str, _Taint],
    functions: Mapping[str, ir.Graph],
) -> bool:
    """One pass over one graph; whether anything that others see has changed."""
    own = state[graph.name]
    edges = {(graph.args[i].name, 0) for i in own.args}
    whole: set[str] = set()
    changed = False
    for name in graph.order:
        node = graph.nodes[name]
        hit = [i for i, e in enumerate(node.inputs) if e[0] in whole or e in edges]
        if hit or node.flag(ir.UNSCALE):
            own.nodes.add(name)
        call = call_of(node, functions)
        known = [f for f in callees_of(node, call) if f in state] if call else []
        if call is None or not known:
            if hit or node.flag(ir.UNSCALE):
                whole.add(name)
            continue
        passed = {i - call.skip for i in hit if i >= call.skip}
        if call.loop:
            passed |= state[known[-1]].results
        for callee in known:
            changed |= not passed <= state[callee].args
            state[callee].args |= passed
            if not call.loop:
                edges |= {(name, i) for i in state[callee].results}
        if call.loop:  # what its condition returns is no result; its arguments are
            edges |= {(name, i) for i in passed}
    results = {
        i
        for i, result in enumerate(graph.results)
        if result.edge[0] in whole or result.edge in edges
    }
    changed |= not results <= own.results
    own.results |= results
    return changed
