"""Inlines function calls, so that 16-bit values can pass between caller and function.

Changes structure only: no types, no cost. A function whose call may not be inlined is
planned by itself, with float32 arguments and results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import MUST_COMPILE, calls_once
from amp.graph_rewrite.ops.op_table import Kind, facts

# Attributes of a function that do not affect how it runs.
_HARMLESS = frozenset(
    {
        "_construction_context",
        "_disable_acd",
        "_input_shapes",
        "backward_function_name",
        "forward_function_name",
        MUST_COMPILE,
    }
)

# The parts of a device's name, in their order; in old names a kind is one ("/cpu:0").
_PARTS = ("job", "replica", "task", "device")
_OLD_KINDS = frozenset({"cpu", "gpu"})

# The attribute that names nodes to be placed with, and what it says before each name.
_CLASS, _BESIDE = "_class", "loc:@"


def inline(module: ir.Module) -> ir.Module:
    """Inlines every inlinable call in the functions of a module.

    A call is inlinable if it neither starts an XLA compilation nor is under
    `keep_float32`, and its function is not recursive and has no attributes but those
    of `_HARMLESS`. A GraphDef's own nodes stay as they are, since a session may fetch
    a call by name::

        for each call, innermost first:
          enter = NoOp after the call's control inputs
          copy the function's nodes under the call's name; those without inputs of
            their own start after enter
          readers of the call's results read what computes them
          the call itself becomes a NoOp after the function's control results
    """
    done: dict[str, ir.Graph] = {}
    for name in module.functions:
        _visit(name, module.functions, done, ())
    main = module.main
    if main.name:
        main = _inlined(main, done)
    return ir.Module(main, {name: done[name] for name in module.functions})


def names(module: ir.Module) -> Iterator[str]:
    """The names of a module's nodes as given, and then as they are once inlined.

    Reports have the latter, in which a call's name comes before those of its nodes.
    """
    for graph in module.graphs():
        yield from graph.nodes
    for graph in inline(module).graphs():
        yield from graph.nodes


def _visit(
    name: str,
    functions: Mapping[str, ir.Graph],
    done: dict[str, ir.Graph],
    above: tuple[str, ...],
) -> None:
    """Puts the inlined form of a function, and of its callees, into `done`.

    `above` holds the callers that led here, so that recursion ends.
    """
    if name in done or name in above:
        return
    graph = functions[name]
    for callee in _callees(graph, functions):
        _visit(callee, functions, done, (*above, name))
    done[name] = _inlined(graph, done)


def _callees(graph: ir.Graph, functions: Mapping[str, ir.Graph]) -> Iterator[str]:
    for node in graph.nodes.values():
        if calls_once(node.op):
            yield from (name for name in node.functions("f") if name in functions)


def _inlined(graph: ir.Graph, done: Mapping[str, ir.Graph]) -> ir.Graph:
    inlinable = dict(_inlinable_calls(graph, done))
    if not inlinable:
        return graph
    given = {name: _given(graph.nodes[name], inlinable[name]) for name in inlinable}
    moved = {
        (name, index): _within(name, result.edge, given[name])
        for name, callee in inlinable.items()
        for index, result in enumerate(callee.results)
    }

    def follow(edge: ir.Edge) -> ir.Edge:
        while edge in moved:
            edge = moved[edge]
        return edge

    nodes: dict[str, ir.Node] = {}
    for node in graph.nodes.values():
        name, body = node.name, [node]
        if name in inlinable:
            body = [*_body(node, inlinable[name], given[name])]
        for made in body:
            inputs = tuple(map(follow, made.inputs))
            nodes[made.name] = made if inputs == made.inputs else made.changed(inputs)
    results = tuple(
        dataclasses.replace(result, edge=follow(result.edge))
        for result in graph.results
    )
    shape = _shapes(graph, inlinable)
    return dataclasses.replace(graph, nodes=nodes, results=results, shape=shape)


def _shapes(graph: ir.Graph, inlinable: Mapping[str, ir.Graph]) -> ir.ShapeSource:
    """The graph's shapes, with those of inlined nodes taken from their functions."""
    origin = {
        f"{name}/{inner}": (callee, inner)
        for name, callee in inlinable.items()
        for inner in callee.nodes
    }

    def shape(edge: ir.Edge) -> ir.Shape:
        if edge[0] in origin:
            callee, inner = origin[edge[0]]
            return callee.shape((inner, edge[1]))
        return graph.shape(edge)

    return shape


def _inlinable_calls(
    graph: ir.Graph, done: Mapping[str, ir.Graph]
) -> Iterator[tuple[str, ir.Graph]]:
    """The (node name, function) of each inlinable call.

    A call is left out if a node already has a name that an inlined node would get.
    """
    compiled = MUST_COMPILE in graph.flags
    for node in graph.nodes.values():
        if not calls_once(node.op) or not is_inlinable(node, compiled, done):
            continue
        callee = done[node.functions("f")[0]]
        made = {f"{node.name}/{inner}" for inner in ("amp_enter", *callee.nodes)}
        if graph.nodes.keys().isdisjoint(made):  # looks at the fewer of the two
            yield node.name, callee


def is_inlinable(node: ir.Node, compiled: bool, done: Mapping[str, ir.Graph]) -> bool:
    """Whether a call's function may take its place, as far as the two of them tell.

    Args:
      node: the call.
      compiled: whether XLA compiles its caller.
      done: the functions.
    """
    names = node.functions("f")
    callee = done.get(names[0]) if names else None
    if callee is None or node.kept or len(node.inputs) != len(callee.args):
        return False
    starts_xla = node.flag(MUST_COMPILE) or MUST_COMPILE in callee.flags
    if (starts_xla and not compiled) or not callee.attributes <= _HARMLESS:
        return False
    return not any(facts(n.op).kind is Kind.ENTER for n in callee.nodes.values())


def _given(call: ir.Node, callee: ir.Graph) -> dict[str, ir.Edge]:
    """The caller's edge for each argument of the function."""
    names = (arg.name for arg in callee.args)
    return dict(zip(names, call.inputs, strict=True))


def _within(call: str, edge: ir.Edge, given: Mapping[str, ir.Edge]) -> ir.Edge:
    """The caller's edge for an edge of the function inlined for `call`."""
    return given.get(edge[0]) or (f"{call}/{edge[0]}", edge[1])


def merged_device(own: str, outer: str) -> str:
    """A node's device, and what it leaves open as in the device of what calls it.

    As TensorFlow does where it inlines: what is on the CPU in a function that a worker
    runs is on the CPU of that worker.
    """
    if not own or not outer:
        return own or outer
    parts = _parts(outer) | _parts(own)
    if not parts.keys() <= set(_PARTS):  # nothing that we know to read
        return own
    return "".join(f"/{part}:{parts[part]}" for part in _PARTS if part in parts)


def _parts(device: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in filter(None, device.split("/")):
        part, _, value = text.partition(":")
        if part.lower() in _OLD_KINDS:
            part, value = "device", text.upper()
        found[part] = value
    return found


def _body(
    call: ir.Node, callee: ir.Graph, given: Mapping[str, ir.Edge]
) -> Iterator[ir.Node]:
    """The nodes that take the place of a call, in the form shown in `inline`.

    Args:
      call: the call.
      callee: its function.
      given: as `_given` says.
    """
    enter, device = f"{call.name}/amp_enter", call.device
    yield ir.Node(enter, "NoOp", (), call.controls, device, None)
    for node in callee.nodes.values():
        controls = tuple(
            _within(call.name, (name, 0), given)[0] for name in node.controls
        )
        sources = [edge[0] for edge in node.inputs] + list(node.controls)
        first = callee.nodes.keys().isdisjoint(sources)
        moved = dataclasses.replace(
            node,
            name=f"{call.name}/{node.name}",
            inputs=tuple(_within(call.name, e, given) for e in node.inputs),
            controls=(*controls, enter) if first else controls,
            device=merged_device(node.device, device),
            pristine=False,
        )
        beside = [text.removeprefix(_BESIDE) for text in node.strings(_CLASS)]
        if beside:
            # An argument is its maker in the caller. A name that is no node's is one of
            # a group (TensorFlow writes arguments' names as they were when traced).
            names = (_within(call.name, (name, 0), given)[0] for name in beside)
            loc = ir.Strings(tuple(f"{_BESIDE}{name}" for name in names))
            moved = moved.changed(updates={_CLASS: loc})
        yield moved
    after = tuple(f"{call.name}/{name}" for name in callee.control_results)
    yield ir.Node(call.name, "NoOp", (), (enter, *after), device, None)
