"""Calls, branches and loops: what functions a graph reaches, what crosses into them.

Facts about call ops are rows of `CALLS`. No choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from amp.graph_rewrite import cost, ir

MUST_COMPILE = "_XlaMustCompile"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """An op that runs functions.

    Attributes:
      attrs: the attributes that name them.
      skip: leading inputs that are not passed on (a predicate, a branch index).
      loop: whether results come back as arguments.
    """

    attrs: tuple[str, ...]
    skip: int = 0
    loop: bool = False


_LOOP = Call(("cond", "body"), loop=True)
_BRANCH = Call(("then_branch", "else_branch"), skip=1)
CALLS: Mapping[str, Call] = {
    "PartitionedCall": Call(("f",)),
    "StatefulPartitionedCall": Call(("f",)),
    "While": _LOOP,
    "StatelessWhile": _LOOP,
    "If": _BRANCH,
    "StatelessIf": _BRANCH,
    "Case": Call(("branches",), skip=1),
    "StatelessCase": Call(("branches",), skip=1),
}
_DIRECT = Call(())


def call_of(node: ir.Node, functions: Mapping[str, ir.Graph]) -> Call | None:
    """How a node calls, None if it does not (or only hands functions to a dataset)."""
    return _DIRECT if node.op in functions else CALLS.get(node.op)


def callees(node: ir.Node, call: Call) -> tuple[str, ...]:
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


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A function as one kind of caller reaches it.

    Attributes:
      name: the function, "" for the main graph of a GraphDef.
      xla: whether XLA compiles it there.
    """

    name: str
    xla: bool


def reached(module: ir.Module) -> dict[Use, float]:
    """Every use of a function from the main graph, with how often it runs a step.

    Functions called under `keep_float32` are left out.
    """
    uses: dict[Use, float] = {}
    pending = [(Use(module.main.name, MUST_COMPILE in module.main.flags), 1.0)]
    while pending:
        use, weight = pending.pop()
        if use in uses:
            continue
        uses[use] = weight
        graph = module.functions.get(use.name, module.main)
        for node, call in calls(graph, module.functions):
            trips = weight * (cost.UNKNOWN_TRIPS if call.loop else 1)
            for callee in uses_of(node, call, use.xla, module.functions):
                pending.append((callee, trips))
    return uses


def uses_of(
    node: ir.Node, call: Call, xla: bool, functions: Mapping[str, ir.Graph]
) -> Iterator[Use]:
    """The uses that a calling node in a graph (compiled by XLA or not) makes."""
    for name in callees(node, call):
        if name in functions:
            compiled = (
                xla or node.flag(MUST_COMPILE) or MUST_COMPILE in functions[name].flags
            )
            yield Use(name, compiled)


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
        known = [f for f in callees(node, call) if f in state] if call else []
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
