"""Calls, branches and loops: which functions a graph reaches, and by which nodes.

Facts about call ops are rows of `CALLS`. No choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.graph.loop_trips import LoopTrips

MUST_COMPILE = "_XlaMustCompile"
_COMPUTATION = "_xla_compile_id"  # of tf.xla.experimental.compile
_Callee = TypeVar("_Callee")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """How an op calls functions.

    Attributes:
      attrs: the attributes that name the functions.
      skip: number of leading inputs that are not passed to the functions (a predicate,
        a branch index).
      loop: whether the results of one trip are the arguments of the next; the last
        function is then the body.
      takes, gives: the list(type) attributes with the types of arguments and results.
      branches: whether one of the functions runs, and the others do not.
      always: whether the op has one function and runs it exactly once.
      each: whether it runs its function for each element of the dataset that is its
        first input, from which a state goes on to the next. AutoGraph makes such nodes
        of `for x in dataset`. Types of arguments and results never change.
    """

    attrs: tuple[str, ...]
    skip: int = 0
    loop: bool = False
    takes: str = "Tin"
    gives: str = "Tout"
    branches: bool = False
    always: bool = False
    each: bool = False

    def givers(self, callees: Sequence[_Callee]) -> Sequence[_Callee]:
        """Those of its functions, in order, whose results are the call's."""
        return callees[-1:] if self.loop else callees


_ONCE = Call(("f",), always=True)
_LOOP = Call(("cond", "body"), loop=True, takes="T", gives="T")
_BRANCH = Call(("then_branch", "else_branch"), skip=1, branches=True)
_CASE = Call(("branches",), skip=1, branches=True)
_EACH = Call(("f",), skip=1, each=True)
CALLS: Mapping[str, Call] = {
    "PartitionedCall": _ONCE,
    "StatefulPartitionedCall": _ONCE,
    "While": _LOOP,
    "StatelessWhile": _LOOP,
    "If": _BRANCH,
    "StatelessIf": _BRANCH,
    "Case": _CASE,
    "StatelessCase": _CASE,
    "ScanDataset": _EACH,
    "ReduceDataset": _EACH,
}
_DIRECT = Call(())
_ON_CPU = "use_default_device"
_SHAPES = ("output_shapes", "_output_shapes")


def call_of(node: ir.Node, functions: Container[str]) -> Call | None:
    """How a node calls functions; None if it does not.

    Ops of `tf.data` that make a dataset of others by a function (`map`) count as not
    calling: that is the input pipeline.
    """
    return _DIRECT if node.op in functions else CALLS.get(node.op)


def calls_once(op: str) -> bool:
    """Whether an op runs the function in its attribute `f` exactly once."""
    return op in CALLS and CALLS[op].always


def callees_of(node: ir.Node, call: Call) -> tuple[str, ...]:
    """The functions that a calling node names, in the order of its attributes."""
    if call is _DIRECT:
        return (node.op,)
    return tuple(name for attr in call.attrs for name in node.functions(attr))


def renamed(node: ir.Node, call: Call, names: Mapping[str, str]) -> ir.Node:
    """The calling node with its functions renamed.

    Args:
      node: the calling node.
      call: how it calls.
      names: new name by old name; functions that are not in it keep their names.
    """
    if call is _DIRECT:
        return dataclasses.replace(node, op=names.get(node.op, node.op), pristine=False)
    updates: dict[str, ir.Value] = {}
    for attr in call.attrs:
        new = tuple(names.get(f, f) for f in node.functions(attr))
        single = isinstance(node.updates.get(attr), ir.Function)
        updates[attr] = ir.Function(new[0]) if single else ir.Functions(new)
    return node.changed(updates=updates)


def extended(
    node: ir.Node, call: Call, edges: Sequence[tuple[ir.Edge, int, ir.Shape]]
) -> ir.Node:
    """The calling node with further arguments; a loop also returns them as results.

    Args:
      node: the calling node.
      call: how it calls.
      edges: the (edge, type, shape) of each further argument.
    """
    types = node.types(call.takes) + tuple(number for _, number, _ in edges)
    updates: dict[str, ir.Value] = {call.takes: ir.Types(types)}
    for attr in _SHAPES:
        known = node.shapes(attr)
        if call.loop and known:
            updates[attr] = ir.Shapes((*known, *(shape for *_, shape in edges)))
    return node.changed(node.inputs + tuple(edge for edge, *_ in edges), updates)


class FunctionUse(NamedTuple):
    """A function, together with whether XLA compiles it.

    A function that is called both under XLA and outside it has two uses, which may get
    different plans because the kernels differ.

    Attributes:
      name: the function, "" for the main graph of a GraphDef.
      xla: whether XLA compiles it for these callers.
    """

    name: str
    xla: bool


Member: TypeAlias = tuple[FunctionUse, str]  # a node of one use of a function
UseEdge: TypeAlias = tuple[FunctionUse, ir.Edge]  # an edge of one


def has_computations(module: ir.Module) -> bool:
    """Whether an attribute of nodes says which of them XLA compiles together.

    TensorFlow refuses such a graph if a node without it stands between them, or reads
    one of them other than by a declared result.
    """
    return any(
        node.has(_COMPUTATION)
        for graph in module.graphs()
        for node in graph.nodes.values()
    )


def uses_with_weights(module: ir.Module) -> dict[FunctionUse, float]:
    """Every use of a function that the main graph reaches, with its runs per step.

    Callers come before their callees. Loops count with their number of trips
    (`LoopTrips`), and each of n branches with 1/n, as one of them runs. Functions
    called under `keep_float32` are left out.
    """
    order, trips = _callers_first(module), LoopTrips(module)
    weights = dict.fromkeys(order, 0.0)
    weights[order[0]] = 1.0
    for use in order:
        for node, call in calls(graph_of(module, use), module.functions):
            times = weights[use]
            if call.loop:
                times *= trips.of(graph_of(module, use), node)
            if call.each:
                times *= shapes.UNKNOWN_TRIPS
            callees = tuple(uses_of(node, call, use.xla, module.functions))
            if call.branches:
                times /= max(len(callees), 1)
            for callee in callees:
                weights[callee] += times
    return weights


def devices_called_on(module: ir.Module) -> dict[FunctionUse, set[str]]:
    """The devices that each use of a function is called on, "" where a call has none.

    There its nodes run that have no device of their own. Where a call has none, its
    function runs where the caller was called. XLA compiles all that a function calls
    for one device, and does not look at the devices of nodes.
    """
    order = _callers_first(module)
    found: dict[FunctionUse, set[str]] = {use: set() for use in order}
    found[order[0]].add("")
    for use in order:
        for node, call in calls(graph_of(module, use), module.functions):
            own = "" if use.xla else _own_device(node, call)
            for callee in uses_of(node, call, use.xla, module.functions):
                found[callee] |= {own} if own else found[use]
    return found


def _own_device(node: ir.Node, call: Call) -> str:
    """The device of what a calling node runs, "" for the caller's.

    `tf.data` runs a function on the CPU unless it is told not to, as AutoGraph does.
    """
    told = node.has(_ON_CPU) and not node.flag(_ON_CPU)
    return "/device:CPU:0" if call.each and not told else node.device


def _callers_first(module: ir.Module) -> list[FunctionUse]:
    order: list[FunctionUse] = []
    main = FunctionUse(module.main.name, MUST_COMPILE in module.main.flags)
    _visit(main, module, order, {})
    order.reverse()
    return order


def graph_of(module: ir.Module, use: FunctionUse) -> ir.Graph:
    """The graph of the function that `use` names."""
    return module.main if use.name == module.main.name else module.functions[use.name]


def _visit(
    use: FunctionUse,
    module: ir.Module,
    order: list[FunctionUse],
    state: dict[FunctionUse, bool],
) -> None:
    """Appends `use` to `order` after all its callees (depth first).

    `state` holds the uses visited so far, so that recursion ends.
    """
    state[use] = True
    for node, call in calls(graph_of(module, use), module.functions):
        for callee in uses_of(node, call, use.xla, module.functions):
            if callee not in state:
                _visit(callee, module, order, state)
    order.append(use)


def sites(module: ir.Module, uses: Mapping[FunctionUse, float]) -> dict[Member, Site]:
    """The calls whose argument and result types may change, by (caller, node name).

    Each function of such a call is called by this node only, runs under XLA if and only
    if its caller does, and has as many parameters as the node passes arguments.
    """
    found: dict[Member, Site] = {}
    callers: Counter[FunctionUse] = Counter()
    for use in uses:
        for node, call in calls(graph_of(module, use), module.functions):
            callees = tuple(uses_of(node, call, use.xla, module.functions))
            callers.update(callees)
            if (
                call is _DIRECT
                or call.each
                or not callees
                or any(c.xla != use.xla for c in callees)
            ):
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
    """A call whose functions no other node calls.

    Attributes:
      use: the caller.
      node: the calling node.
      call: how it calls.
      callees: the functions in the order of the node's attributes; a loop's body last.
    """

    use: FunctionUse
    node: ir.Node
    call: Call
    callees: tuple[FunctionUse, ...]


def uses_of(
    node: ir.Node, call: Call, xla: bool, functions: Mapping[str, ir.Graph]
) -> Iterator[FunctionUse]:
    """The function uses that a calling node makes.

    Args:
      node: the calling node.
      call: how it calls.
      xla: whether XLA compiles the graph that holds the node.
      functions: the module's functions by name; others are skipped.
    """
    for name in callees_of(node, call):
        if name in functions:
            compiled = (
                xla or node.flag(MUST_COMPILE) or MUST_COMPILE in functions[name].flags
            )
            yield FunctionUse(name, compiled)


def calls(
    graph: ir.Graph, functions: Mapping[str, ir.Graph]
) -> Iterator[tuple[ir.Node, Call]]:
    """The calling nodes of a graph, except those under `keep_float32`."""
    if graph.ops.isdisjoint(CALLS) and graph.ops.isdisjoint(functions):
        return
    for node in graph.nodes.values():
        call = call_of(node, functions)
        if call is not None and not node.kept:
            yield node, call
