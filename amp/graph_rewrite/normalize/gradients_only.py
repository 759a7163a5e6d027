"""Copies of a training step that compute its gradients and change nothing.

The gradients are what the unscale markers read. A copy has only the nodes that they
are computed from: no update, no print, no check, no counter. What a step takes from
elsewhere (a batch of an iterator, a number from a stateful generator) cannot be taken
twice; such tensors are further results of one function, `recorded`, and further
arguments of the copies. Where the gradients are in a function that XLA compiles, which
is not inlined, the copies are of that function, and what is recorded are its arguments.

Nothing is run here and no precision is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.graph import calls, generators, ir, op_schema
from amp.graph_rewrite.ops.op_table import Kind, facts

_SCALE = "amp_check_scale"
_RECORD = "amp_check_input"
# What a copy computes beyond the range is to be judged, and not to end it.
_WATCHES = frozenset({Kind.GUARD, Kind.PRINT})

Tensor: TypeAlias = tuple[ir.Edge, int]  # with its DataType number


@dataclasses.dataclass(frozen=True, slots=True)
class Gradients:
    """What a copy of a training step takes and gives.

    Attributes:
      markers: the unscale markers that read the gradients, one for each gradient.
      names: for each, the node that makes it in float32.
      labels: for each, its scaler and variable (`ir.SOURCE`), "" where it has none.
      taken: the tensors that are taken from elsewhere, or all arguments of `inner`.
      scaled: whether the step multiplies the incoming gradient by a loss scale.
      inner: the node that calls the function they are computed in; "" for the step
        itself.
    """

    markers: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    taken: tuple[Tensor, ...]
    scaled: bool
    inner: str = ""


class NotRepeatable(Exception):
    """The gradients of a step cannot be computed a second time; says why."""


def is_step(module: ir.Module) -> bool:
    """Whether a function takes one training step: it unscales gradients, in no loop.

    Args:
      module: the function with its calls inlined.
    """
    return _is_marked(module.main)


def gradients(module: ir.Module) -> Gradients:
    """Finds the gradients of a training step.

    Args:
      module: the step in float32, with its calls inlined.

    Raises:
      NotRepeatable: it has none, or they depend on what can neither be repeated nor be
        recorded.
    """
    inner, graph = holder(module)
    lookup = op_schema.lookup_of(module)
    first: dict[ir.Edge, str] = {}  # by gradient, one of the markers that read it
    for node in graph.nodes.values():
        if node.flag(ir.UNSCALE) and _type(node, 0, lookup) == ir.FLOAT:
            first.setdefault(node.inputs[0], node.name)
    if not first:
        raise NotRepeatable("it has no gradients of variables")
    taken: list[Tensor] = []
    found = graph.computed_from(
        first, lambda node: not takes_from_elsewhere(node, module)
    )
    nodes = [name for name in graph.nodes if name in found]
    for name in nodes:
        node = graph.nodes[name]
        if takes_from_elsewhere(node, module):
            taken += _outputs(node, lookup, graph)
    behind = graph.computed_from(edge for edge, _ in taken)
    # The gradient of a `tf.py_function`: what is recorded is of one loss scale.
    if any(node.flag(ir.SEED) for name, node in graph.nodes.items() if name in behind):
        raise NotRepeatable(f"node {taken[-1][0][0]} cannot run twice")
    if inner is not None:
        if taken:
            raise NotRepeatable(f"node {taken[0][0][0]} cannot run twice")
        types = (arg.type for arg in graph.args)
        taken = [*zip(inner.inputs, types, strict=True)]
    seeds = [graph.nodes[name] for name in nodes if graph.nodes[name].flag(ir.SEED)]
    return Gradients(
        markers=tuple(first.values()),
        names=tuple(name for name, _ in first),
        labels=tuple(graph.nodes[name].text(ir.SOURCE) for name in first.values()),
        taken=tuple(taken),
        scaled=bool(seeds) and all(_type(n, 1, lookup) == ir.FLOAT for n in seeds),
        inner="" if inner is None else inner.name,
    )


def holder(module: ir.Module) -> tuple[ir.Node | None, ir.Graph]:
    """The graph with the unscale markers, and the node of the step that calls it.

    Raises:
      NotRepeatable: no node of the step, or more than one, calls that graph.
    """
    if _is_marked(module.main):
        return None, module.main
    marked = {name for name, graph in module.functions.items() if _is_marked(graph)}
    if not marked:
        return None, module.main
    callers = [
        node
        for node in module.main.nodes.values()
        if calls.calls_once(node.op) and not marked.isdisjoint(node.functions("f"))
    ]
    if len(callers) != 1:
        where = f"in function {min(marked)}, not in it"
        raise NotRepeatable(f"its gradients are computed {where}")
    return callers[0], module.functions[callers[0].functions("f")[0]]


def _is_marked(graph: ir.Graph) -> bool:
    return any(node.flag(ir.UNSCALE) for node in graph.nodes.values())


def _type(node: ir.Node, index: int, lookup: op_schema.Lookup) -> int:
    known = lookup(node.op)
    ins = () if known is None else known.signature(node).ins
    return ins[index].type if index < len(ins) else 0


def _outputs(
    node: ir.Node, lookup: op_schema.Lookup, graph: ir.Graph
) -> Iterable[Tensor]:
    """The outputs of a node that are read; each must be one that can be recorded."""
    known = lookup(node.op)
    outs = () if known is None else known.signature(node).outs
    for index, slot in enumerate(outs):
        edge = (node.name, index)
        if edge in graph.readers:
            if slot.type in ir.HANDLES or slot.type > ir.REF_OFFSET:
                raise NotRepeatable(f"node {node.name} ({node.op}) cannot run twice")
            yield edge, slot.type


def takes_from_elsewhere(node: ir.Node, module: ir.Module) -> bool:
    """Whether a second run of a node might give something else, or change something."""
    return any(
        op_schema.is_stateful(each.op)
        and not facts(each.op).reads_state
        and not _is_left_out(each)
        and not generators.is_random(each)
        for each in run_by(node, module)
    )


def is_random(copy: ir.Module) -> bool:
    """Whether a second run of the same copy draws other random numbers."""
    return any(_draws(node, copy) for node in copy.main.nodes.values())


def run_by(node: ir.Node, module: ir.Module) -> Iterator[ir.Node]:
    """A node, or the nodes of the functions that it calls, which call none."""
    if calls.call_of(node, module.functions) is None:
        yield node
    for graph in _called([node], module).values():
        for each in graph.nodes.values():
            if calls.call_of(each, module.functions) is None:
                yield each


def _draws(node: ir.Node, module: ir.Module) -> bool:
    """Whether each run of a node draws other random numbers."""
    return any(map(generators.is_random, run_by(node, module)))


def _differs(node: ir.Node, module: ir.Module) -> bool:
    """Whether a node, or what it calls, is another one in copies."""
    run = run_by(node, module)
    return any(_is_left_out(each) or generators.is_random(each) for each in run)


def _called(nodes: Iterable[ir.Node], module: ir.Module) -> dict[str, ir.Graph]:
    """The functions that nodes call, and those that these call, by name."""
    found: dict[str, ir.Graph] = {}
    pending = [*nodes]
    while pending:
        node = pending.pop()
        call = calls.call_of(node, module.functions)
        for name in () if call is None else calls.callees_of(node, call):
            if name in module.functions and name not in found:
                found[name] = module.functions[name]
                pending += found[name].nodes.values()
    return found


def recorded(module: ir.Module, wanted: Gradients, name: str) -> ir.Module:
    """The step, under another name, also returning what it takes from elsewhere."""
    main = module.main
    further = tuple(
        ir.Result(f"{_RECORD}_{index}", number, edge)
        for index, (edge, number) in enumerate(wanted.taken)
    )
    main = main.with_nodes(main.nodes, main.results + further)
    return ir.Module(dataclasses.replace(main, name=name), module.functions)


def gradients_only(module: ir.Module, wanted: Gradients, name: str) -> ir.Module:
    """A copy of a step that returns its gradients.

    Its arguments are those of the step (none of them if there is `wanted.inner`), the
    tensors of `wanted.taken`, and, if `wanted.scaled`, a loss scale to use in place of
    the step's own.

    Args:
      module: the step, in float32 or rewritten.
      wanted: of the step in float32.
      name: of the copy.

    Raises:
      NotRepeatable: a rewritten step depends on more than the step in float32 does.
    """
    graph, given = _copied_graph(module, wanted)
    stops = {edge[0] for edge in given}
    edges = [graph.nodes[marker].inputs[0] for marker in wanted.markers]
    kept = graph.computed_from(edges, lambda node: node.name not in stops) - stops
    nodes = {}
    for each in (each for each in graph.nodes if each in kept):
        if takes_from_elsewhere(graph.nodes[each], module):
            op = graph.nodes[each].op
            raise NotRepeatable(f"node {each} ({op}) cannot run twice")
        nodes[each] = _copied(graph.nodes[each], kept, given, wanted.scaled)
    types = dict(wanted.taken)
    args = [*graph.args]
    args += [ir.Argument(arg, types[edge]) for edge, (arg, _) in given.items()]
    if wanted.scaled:
        args.append(ir.Argument(_SCALE, ir.FLOAT))
    results = tuple(
        ir.Result(f"gradient_{index}", ir.FLOAT, given.get(edge, edge))
        for index, edge in enumerate(edges)
    )
    copy = ir.Graph(name, nodes, tuple(args), results, shape=graph.shape)
    return _with_functions(ir.Module(copy, module.functions))


def computing_only(
    module: ir.Module, wanted: Gradients, numbers: Iterable[int]
) -> frozenset[str]:
    """The nodes of the main graph from which only some of the gradients are computed.

    Args:
      module: the step in float32.
      wanted: its gradients.
      numbers: of those gradients.
    """
    graph = module.main
    if wanted.inner:
        return frozenset()
    reached: dict[str, int] = {}  # by node, the gradients computed from it, as bits
    for number, marker in enumerate(wanted.markers):
        name = graph.nodes[marker].inputs[0][0]
        reached[name] = reached.get(name, 0) | 1 << number
    for name in reversed(graph.order):
        for source, _ in graph.nodes[name].inputs if name in reached else ():
            reached[source] = reached.get(source, 0) | reached[name]
    allowed = sum(1 << number for number in set(numbers))
    return frozenset(name for name, bits in reached.items() if not bits & ~allowed)


def _copied_graph(
    module: ir.Module, wanted: Gradients
) -> tuple[ir.Graph, dict[ir.Edge, ir.Edge]]:
    """The graph to copy, and the arguments that take the place of its edges."""
    if not wanted.inner:
        taken = enumerate(wanted.taken)
        return module.main, {edge: (f"{_RECORD}_{i}", 0) for i, (edge, _) in taken}
    (name,) = module.main.nodes[wanted.inner].functions("f")
    graph = module.functions[name]
    if [arg.type for arg in graph.args] != [number for _, number in wanted.taken]:
        raise NotRepeatable(f"function {name} takes arguments in 16 bits")
    return graph, {}


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


def _is_left_out(node: ir.Node) -> bool:
    """Whether a node hands on what it watches: in copies, unwatched."""
    return facts(node.op).kind in _WATCHES


def _repeating(node: ir.Node) -> ir.Node:
    """The node as it is in copies: it draws the same in each, and watches nothing."""
    if not _is_left_out(node):
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
        for name, graph in _called(copy.main.nodes.values(), copy).items()
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
