"""Turns a cluster of nodes into a function and a call of it, and undoes that.

Changes structure only: `fuse` says which nodes make a cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Set
from typing import Any

from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.graph.calls import MUST_COMPILE

TypeOf = Callable[[ir.Edge], int]
_CALL = "PartitionedCall"  # the op of the nodes that call clusters


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """A function made of some nodes, before it has a name.

    Attributes:
      body: the function's nodes, with names that do not depend on the graph.
      members: names of the graph's nodes that it computes, without copied nodes.
      after: nodes that these wait for by control inputs.
      reads: the graph's edges that are passed as arguments.
      gives: the graph's edges that the results replace.
      results: the edges of the body that are returned, in the order of `gives`.
      types: types of arguments, then of results.
      sizes: shapes of arguments, then of results, at the call that plans are made for.
      shapes: the shapes of results as far as they are the same at every call.
      fixed: whether arguments and results have the same shapes at every call. Integers
        are not asked: they say what to do with the others, as the axes of a sum.
      key: equal for two outlines that can share one function.
    """

    body: tuple[ir.Node, ...]
    members: tuple[str, ...]
    after: tuple[str, ...]
    reads: tuple[ir.Edge, ...]
    gives: tuple[ir.Edge, ...]
    results: tuple[ir.Edge, ...]
    types: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    shapes: tuple[ir.Shape, ...]
    fixed: bool
    key: Any


def outline(
    graph: ir.Graph,
    members: tuple[str, ...],
    copied: Callable[[str], bool],
    gives: tuple[ir.Edge, ...],
    type_of: TypeOf,
) -> Outline:
    """Makes a function of some nodes of a graph.

    Args:
      graph: the graph; the sizes of all edges that the nodes read or make are known.
      members: names of the nodes, inputs first.
      copied: whether a node that the members read is to be copied into the body.
      gives: the members' edges that other nodes read.
      type_of: the type of an edge.
    """
    made = _Body(graph, copied)
    for name in members:
        made.add(name)
    body, reads = made.nodes, made.reads
    border = (*reads, *gives)
    types = tuple(map(type_of, border))
    sizes = tuple(graph.size(e) or () for e in border)
    known = tuple(map(graph.shape, border))
    moved = (s for s, t in zip(known, types, strict=True) if t not in ir.INTEGERS)
    results = tuple((body[name].name, index) for name, index in gives)
    nodes = tuple(body.values())
    device = graph.nodes[gives[0][0]].device
    key = (tuple(map(_key, nodes)), results, types, sizes, device)
    waits = (source for name in members for source in graph.nodes[name].controls)
    after = tuple(dict.fromkeys(source for source in waits if source not in body))
    return Outline(
        body=nodes,
        members=members,
        after=after,
        reads=tuple(reads),
        gives=gives,
        results=results,
        types=types,
        sizes=sizes,
        shapes=known[len(reads) :],
        fixed=all(map(shapes.whole, moved)),
        key=key,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Body:
    """The nodes of a function while it is made.

    Attributes:
      graph: the graph that they are taken from.
      copied: whether a node that another one reads is to be copied.
      nodes: those added so far, by their names in the graph.
      reads: the graph's edges that are passed as arguments, with the arguments' names.
    """

    graph: ir.Graph
    copied: Callable[[str], bool]
    nodes: dict[str, ir.Node] = dataclasses.field(default_factory=dict)
    reads: dict[ir.Edge, str] = dataclasses.field(default_factory=dict)

    def add(self, name: str) -> None:
        """Adds a node of the graph, after those that it reads and that are copied."""
        node = self.graph.nodes[name]
        inputs = tuple(map(self._edge, node.inputs))
        attrs = None if node.attrs is None else node.attrs.bare()
        own = f"node_{len(self.nodes)}"
        updates = {key: v for key, v in node.updates.items() if ir.is_of_work(key)}
        self.nodes[name] = ir.Node(own, node.op, inputs, (), "", attrs, updates)

    def _edge(self, given: ir.Edge) -> ir.Edge:
        name, index = given
        if name not in self.nodes and self.copied(name):
            self.add(name)
        if name in self.nodes:
            return (self.nodes[name].name, index)
        return (self.reads.setdefault(given, f"arg_{len(self.reads)}"), 0)


def _key(node: ir.Node) -> Any:
    values = tuple((k, _hashable(v)) for k, v in sorted(node.updates.items()))
    return node.op, node.inputs, node.attrs and node.attrs.key(), values


def _hashable(value: ir.Value) -> Any:
    if isinstance(value, ir.Tensor):
        return value.number, value.values.shape, value.values.tobytes()
    return value


def function(made: Outline, name: str) -> ir.Graph:
    """The outline as a function with a name."""
    count = len(made.reads)
    args = (ir.Argument(f"arg_{i}", t) for i, t in enumerate(made.types[:count]))
    triples = zip(made.types[count:], made.results, strict=True)
    results = (ir.Result(f"result_{i}", t, e) for i, (t, e) in enumerate(triples))
    nodes = {node.name: node for node in made.body}
    return ir.Graph(name, nodes, tuple(args), tuple(results))


def call(made: Outline, name: str, function_name: str, device: str) -> ir.Node:
    """A node that calls the function, compiled by XLA.

    Its attributes keep later rewrites from changing it (`ir.KEEP`), and name the edges
    that its results replace (`ir.CLUSTER`), so that `unfuse` can remove it.
    """
    count = len(made.reads)
    updates: dict[str, ir.Value] = {
        "f": ir.Function(function_name),
        "Tin": ir.Types(made.types[:count]),
        "Tout": ir.Types(made.types[count:]),
        "_output_shapes": ir.Shapes(made.shapes),
        MUST_COMPILE: True,
        ir.KEEP: True,
        ir.CLUSTER: ",".join(f"{source}:{index}" for source, index in made.gives),
    }
    return ir.Node(name, _CALL, made.reads, made.after, device, None, updates)


def with_calls(
    graph: ir.Graph, calls: Mapping[str, tuple[Outline, str]], idle: Set[str]
) -> ir.Graph:
    """The graph with calls of clusters, whose results other nodes and calls read.

    The nodes of a cluster stay in the graph. If one is fetched by name its kernel runs;
    otherwise nothing reads them, and TensorFlow prunes them.

    Args:
      graph: the graph without the calls.
      calls: outline and function name of each call, by the call's node name.
      idle: nodes that need not run any more (`Members.idle`).
    """
    moved = {
        edge: (name, index)
        for name, (made, _) in calls.items()
        for index, edge in enumerate(made.gives)
    }
    runs = {n: name for name, (made, _) in calls.items() for n in made.members}
    nodes = dict(graph.nodes)
    for name, (made, function_name) in calls.items():
        device = graph.nodes[made.gives[0][0]].device
        nodes[name] = call(made, name, function_name, device)
    readers = {reader for edge in moved for reader, _ in graph.readers.get(edge, ())}
    for name in (readers - idle) | calls.keys():
        nodes[name] = _reading(nodes[name], moved)
    for name, node in [*nodes.items()]:
        if node.controls and name not in idle:
            nodes[name] = _waiting(node, runs)
    return _moved(graph, nodes, moved)


def _waiting(node: ir.Node, runs: Mapping[str, str]) -> ir.Node:
    """The node, waiting for calls instead of the nodes that they compute."""
    if runs.keys().isdisjoint(node.controls):
        return node
    controls = tuple(dict.fromkeys(runs.get(name, name) for name in node.controls))
    updates: dict[str, ir.Value] = {ir.AFTER: ",".join(node.controls)}
    node = node.changed(updates=updates)
    return dataclasses.replace(node, controls=controls)


def unfuse(graph: ir.Graph) -> ir.Graph:
    """The graph as it was before `with_calls`.

    A call stays if one of the nodes that it computes is gone (as after pruning).
    """
    moved: dict[ir.Edge, ir.Edge] = {}
    nodes = dict(graph.nodes)
    if _CALL not in graph.ops:
        return graph
    for name, node in graph.nodes.items():
        if node.op != _CALL or not node.has(ir.CLUSTER):
            continue
        given = [text.rpartition(":") for text in node.text(ir.CLUSTER).split(",")]
        if all(source in nodes for source, _, _ in given):
            del nodes[name]
            for index, (source, _, output) in enumerate(given):
                moved[name, index] = (source, int(output))
    if not moved:
        return graph
    for name, node in nodes.items():
        if node.controls or not moved.keys().isdisjoint(node.inputs):
            nodes[name] = _waiting_before(_reading(node, moved), nodes)
    return _moved(graph, nodes, moved)


def _waiting_before(node: ir.Node, nodes: Container[str]) -> ir.Node:
    if not node.controls or not node.has(ir.AFTER):
        return node
    before = tuple(filter(None, node.text(ir.AFTER).split(",")))
    if not before or not all(name in nodes for name in before):
        return node
    updates = {name: value for name, value in node.updates.items() if name != ir.AFTER}
    return dataclasses.replace(node, controls=before, updates=updates, pristine=False)


def _reading(node: ir.Node, moved: Mapping[ir.Edge, ir.Edge]) -> ir.Node:
    if moved.keys().isdisjoint(node.inputs):
        return node
    return node.changed(tuple(moved.get(edge, edge) for edge in node.inputs))


def _moved(
    graph: ir.Graph, nodes: dict[str, ir.Node], moved: Mapping[ir.Edge, ir.Edge]
) -> ir.Graph:
    before = {new: old for old, new in moved.items()}

    def of_moved(known: ir.ShapeSource) -> ir.ShapeSource:
        return lambda edge: known(before.get(edge, edge))

    results = tuple(
        dataclasses.replace(result, edge=moved.get(result.edge, result.edge))
        for result in graph.results
    )
    shaped = graph.with_shapes(of_moved)
    return dataclasses.replace(shaped, nodes=nodes, results=results)
