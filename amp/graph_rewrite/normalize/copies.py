"""Copies of a function that compute what is wanted of it and change nothing.

That is the gradients that unscale markers read, or what a function gives that takes
none. A copy has only the nodes that they are computed from: no update, no print, no
check, no counter. What a function takes from elsewhere (a batch of an iterator, a
number from a stateful generator) cannot be taken twice; such tensors are further
results of one function, `recorded`, and further arguments of the copies. Where it is
computed in a function that XLA compiles, which is not inlined, the copies are of that
function, and what is recorded are its arguments.
Where they are in a loop or a branch (`inner_steps`), copies are of its function, and
what is recorded is what the newest trip was given.

Nothing is run here and no precision is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping

from amp.graph_rewrite.graph import calls, generators, ir
from amp.graph_rewrite.normalize.inner_steps import keeping
from amp.graph_rewrite.normalize.wanted import (
    NotRepeatable,
    Wanted,
    functions_called,
    holder,
    is_left_out,
    run_by,
    takes_from_elsewhere,
)

_SCALE = "amp_check_scale"
_RECORD = "amp_check_input"


def is_random(copy: ir.Module) -> bool:
    """Whether a second run of the same copy draws other random numbers."""
    return any(_draws(node, copy) for node in copy.main.nodes.values())


def _draws(node: ir.Node, module: ir.Module) -> bool:
    """Whether each run of a node draws other random numbers."""
    return any(map(generators.is_random, run_by(node, module)))


def _differs(node: ir.Node, module: ir.Module) -> bool:
    """Whether a node, or what it calls, is another one in copies."""
    run = run_by(node, module)
    return any(is_left_out(each) or generators.is_random(each) for each in run)


def recorded(module: ir.Module, wanted: Wanted, name: str) -> ir.Module:
    """The step, under another name, also giving what is to be recorded.

    They are further results, or where `wanted.kept` says so one optional that the
    variable of this name holds (`inner_steps.keeping`).
    """
    if wanted.kept is not None:
        return keeping(module, wanted.kept, wanted.taken, name)
    main = module.main
    further = tuple(
        ir.Result(f"{_RECORD}_{index}", number, edge)
        for index, (edge, number) in enumerate(wanted.taken)
    )
    main = main.with_nodes(main.nodes, main.results + further)
    return ir.Module(dataclasses.replace(main, name=name), module.functions)


def computing(module: ir.Module, wanted: Wanted, name: str) -> ir.Module:
    """A copy of a function that returns what is wanted of it.

    Its arguments are those of the step (`wanted.passed` if they are computed in another
    graph), the tensors of `wanted.taken`, and, if `wanted.scaled`, a loss scale to use
    in place of the step's own.

    Args:
      module: the step, in float32 or rewritten.
      wanted: of the step in float32.
      name: of the copy.

    Raises:
      NotRepeatable: a rewritten step depends on more than the step in float32 does.
    """
    graph = holder(module, wanted)
    given = {edge: (f"{_RECORD}_{i}", 0) for i, edge in enumerate(wanted.stood_for)}
    args, nodes = _arguments(graph, wanted, given)
    stops = {edge[0] for edge in given}
    edges = [read.edge(graph) for read in wanted.reads]
    kept = graph.computed_from(edges, lambda node: node.name not in stops) - stops
    if not kept <= {*graph.nodes, *(arg.name for arg in args)}:
        raise NotRepeatable(f"function {graph.name} takes other arguments")
    for each in (each for each in graph.nodes if each in kept):
        if takes_from_elsewhere(graph.nodes[each], module):
            op = graph.nodes[each].op
            raise NotRepeatable(f"node {each} ({op}) cannot run twice")
        nodes[each] = _copied(graph.nodes[each], kept, given, wanted.scaled)
    if wanted.scaled:
        args.append(ir.Argument(_SCALE, ir.FLOAT))
    results = tuple(
        ir.Result(f"wanted_{index}", read.type, given.get(edge, edge))
        for index, (read, edge) in enumerate(zip(wanted.reads, edges, strict=True))
    )
    copy = ir.Graph(name, nodes, tuple(args), results, shape=graph.shape)
    return _with_functions(ir.Module(copy, module.functions))


def computing_only(
    module: ir.Module, wanted: Wanted, numbers: Iterable[int]
) -> frozenset[str]:
    """The nodes of the main graph from which only some values are computed.

    Args:
      module: the step in float32.
      wanted: its gradients.
      numbers: of those gradients.
    """
    graph = module.main
    if wanted.way:
        return frozenset()
    reached: dict[str, int] = {}  # by node, the gradients computed from it, as bits
    for number, read in enumerate(wanted.reads):
        name, _ = read.edge(graph)
        reached[name] = reached.get(name, 0) | 1 << number
    for name in reversed(graph.order):
        for source, _ in graph.nodes[name].inputs if name in reached else ():
            reached[source] = reached.get(source, 0) | reached[name]
    allowed = sum(1 << number for number in set(numbers))
    return frozenset(name for name, bits in reached.items() if not bits & ~allowed)


def _arguments(
    graph: ir.Graph, wanted: Wanted, given: dict[ir.Edge, ir.Edge]
) -> tuple[list[ir.Argument], dict[str, ir.Node]]:
    """The arguments of a copy but for the loss scale, and casts of them.

    Args:
      graph: that is copied.
      wanted: of the step in float32, which what was recorded has the types of.
      given: what takes the place of its edges; updated where that is cast.
    """
    own = {arg.name: arg.type for arg in graph.args}
    numbers = [number for number, _ in wanted.passed] if wanted.way else range(len(own))
    args = [graph.args[number] for number in numbers]
    casts: dict[str, ir.Node] = {}
    for edge, (_, wide) in zip(wanted.stood_for, wanted.taken, strict=True):
        name, _ = given[edge]
        args.append(ir.Argument(name, wide))
        low = own.get(edge[0], wide)
        if low != wide:
            casts[f"{name}_low"] = ir.Node(
                f"{name}_low",
                "Cast",
                ((name, 0),),
                (),
                "",
                None,
                {"SrcT": ir.Type(wide), "DstT": ir.Type(low), "Truncate": False},
            )
            given[edge] = f"{name}_low", 0
    return args, casts


def _copied(
    node: ir.Node,
    kept: Container[str],
    given: Mapping[ir.Edge, ir.Edge],
    scaled: bool,
) -> ir.Node:
    inputs = tuple(given.get(edge, edge) for edge in node.inputs)
    if scaled and node.flag(ir.SEED):
        inputs = (inputs[0], (_SCALE, 0))
    controls = tuple(name for name in node.controls if name in kept)
    node = dataclasses.replace(node, inputs=inputs, controls=controls, pristine=False)
    return _repeating(node)


def _repeating(node: ir.Node) -> ir.Node:
    """The node as it is in copies: it draws the same in each, and watches nothing."""
    if not is_left_out(node):
        return generators.repeating(node)
    attrs: dict[str, ir.Value] = {"T": ir.Type(node.types("T")[0])}
    source = node.inputs[:1]
    return ir.Node(
        node.name, "Identity", source, node.controls, node.device, None, attrs
    )


def _with_functions(copy: ir.Module) -> ir.Module:
    """A copy whose functions, too, have all nodes as they are in copies."""
    names = {
        name: f"{name}_{copy.main.name}"
        for name, graph in functions_called(copy.main.nodes.values(), copy).items()
        if any(_differs(node, copy) for node in graph.nodes.values())
    }

    def repeating(graph: ir.Graph, name: str) -> ir.Graph:
        nodes = {}
        for node in graph.nodes.values():
            call = calls.call_of(node, copy.functions)
            if call is not None:
                callees = names.keys() & calls.callees_of(node, call)
                node = calls.renamed(node, call, names) if callees else node
            nodes[node.name] = _repeating(node)
        return graph.with_nodes(nodes).of_same_nodes(name=name)

    if not names:
        return copy
    made = {new: repeating(copy.functions[old], new) for old, new in names.items()}
    main = repeating(copy.main, copy.main.name)
    return ir.Module(main, {**copy.functions, **made})
