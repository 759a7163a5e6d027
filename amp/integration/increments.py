"""What a run needs of a session's graph and its twin lacks, as a graph by itself.

Definitions are read and put together here; nothing is rewritten, imported or run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from amp.graph_rewrite import ir
from amp.graph_rewrite.control_flow import CALLS
from amp.graph_rewrite.fusible import FUSIBLE
from amp.graph_rewrite.op_table import TABLE, Role

# Above so many new nodes, reading a whole graph is faster than reading each.
_MANY = 200
COMPUTE = frozenset(op for op, row in TABLE.items() if row.role is Role.COMPUTE)


class Definitions:
    """The definitions of a graph that grows, by name, as of the last `update`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.order: dict[str, int] = {}  # a node's place among those that were built
        self.versions: Any = None
        self._functions: dict[str, Any] = {}
        self._gradients: list[Any] = []
        self._version = -1
        self._readers: dict[str, list[str]] = {}  # of variants

    def behind(self, graph: Any) -> bool:
        """Whether `graph` has grown since the last update."""
        return bool(graph.version != self._version)

    def update(self, graph: Any) -> None:
        """Reads what is new in `graph`; costs little where nothing is."""
        if not self.behind(graph):
            return
        self._version = graph.version
        operations = graph.get_operations()
        new = [
            operation.node_def for operation in operations[len(self.nodes) :][:_MANY]
        ]
        if len(new) == _MANY or not self.nodes or any(map(_calls, new)):
            proto = graph.as_graph_def()
            new, self.versions = proto.node, proto.versions
            self._functions = {f.signature.name: f for f in proto.library.function}
            self._gradients = list(proto.library.gradient)
        for node in new:
            self.nodes[node.name] = node
            self.order.setdefault(node.name, len(self.order))
        if any(map(_lists, new)):
            self._readers = _readers(self.nodes, graph)

    def needed(self, roots: Iterable[str], placed: Placed) -> list[Any]:
        """The nodes that roots depend on and that are not placed, in built order.

        With a node come those whose names are scopes that it is in: no graph imports
        `a` once it has `a/b`. With tensor lists come their readers: in what type a loop
        keeps what its gradient reads is one decision.
        """
        found: set[str] = set()
        waiting = [name for name in roots if placed.operation(name) is None]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                scopes = (scope for scope in scopes_of(name) if scope in self.nodes)
                readers = self._readers.get(name, ())
                wanted = (*sources_of(self.nodes[name]), *scopes, *readers)
                waiting += [
                    other for other in wanted if placed.operation(other) is None
                ]
        return [self.nodes[name] for name in sorted(found, key=self.order.__getitem__)]

    def missing(self, placed: Placed) -> list[Any]:
        """All nodes that are not placed, in built order."""
        nodes = self.nodes.items()
        return [node for name, node in nodes if placed.operation(name) is None]

    def ancestors(self, roots: Iterable[str]) -> set[str]:
        """The nodes that roots depend on, themselves included."""
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += sources_of(self.nodes[name])
        return found

    def library(self, nodes: Iterable[Any]) -> Any:
        """The functions that nodes reach, as a FunctionDefLibrary."""
        library = tf.compat.v1.GraphDef().library
        waiting = list(nodes) if self._functions else []
        taken: set[str] = set()
        gradients = {g.function_name: g for g in self._gradients}
        while waiting:
            for name in _called(waiting.pop()):
                if name in taken or name not in self._functions:
                    continue
                taken.add(name)
                library.function.append(self._functions[name])
                waiting += self._functions[name].node_def
                if name in gradients:
                    library.gradient.append(gradients[name])
                    waiting.append(_Call(gradients[name].gradient_func))
        return library

    def compute(self, nodes: Sequence[Any]) -> bool:
        """Whether there is an operation worth rewriting in nodes or their functions."""
        functions = self.library(nodes).function
        bodies = (node for function in functions for node in function.node_def)
        return any(node.op in COMPUTE for node in (*nodes, *bodies))


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """Reads like a node that calls a function."""

    op: str
    attr: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _called(node: Any) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


def _calls(node: Any) -> bool:
    return tf.raw_ops.__dict__.get(node.op) is None or len(list(_called(node))) > 1


def _lists(node: Any) -> bool:
    """Whether a node may make or hand on a tensor list."""
    return node.op in CALLS or "TensorList" in node.op


def _readers(nodes: Mapping[str, Any], graph: Any) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for name, index in map(_edge, node.input):
            if name in nodes and _lists(nodes[name]):
                tensor = graph.get_operation_by_name(name).outputs[index]
                if tensor.dtype == tf.variant:
                    readers.setdefault(name, []).append(node.name)
    return readers


def scopes_of(name: str) -> Iterator[str]:
    """The scopes that a name is in, without their slashes."""
    end = name.find("/")
    while end > 0:
        yield name[:end]
        end = name.find("/", end + 1)


def sources_of(node: Any) -> Iterator[str]:
    """The nodes that a definition names: inputs, controls, what it is placed with."""
    for text in node.input:
        yield source_of(text)
    if "_class" in node.attr:
        for group in node.attr["_class"].list.s:
            name = group.decode().removeprefix("loc:@")
            if name != node.name:
                yield name


def source_of(text: str) -> str:
    """The node that an input, or a control input, names."""
    return text[1:] if text.startswith("^") else _edge(text)[0]


def _edge(text: str) -> ir.Edge:
    name, _, index = text.rpartition(":")
    return (name, int(index)) if name and index.isdecimal() else (text, 0)


class Placed(Protocol):
    """What is in a twin already, by the names of the user's graph."""

    def operation(self, name: str) -> Any:
        """The twin's operation, None where there is none yet."""

    def unchanged(self, name: str) -> bool:
        """Whether the twin has a node as the user's graph has it, with its inputs."""

    def steps(self, edge: ir.Edge) -> tuple[int, ...]:
        """The types that an edge must be cast to, in turn, for the user's value."""

    def behind(self, name: str) -> bool:
        """Whether a node is downstream of an unscale marker."""


@dataclasses.dataclass(frozen=True, slots=True)
class Increment:
    """New nodes, and stand-ins for what they read of the nodes that are placed.

    Attributes:
      proto: a GraphDef of both.
      fresh: the names of the new nodes, in the order in which they were built.
      edges: the twin's tensor for each edge of a stand-in.
      controls: the twin's operation for each stand-in that others wait for.
      shown: the user's edge that a stand-in's value is.
    """

    proto: Any
    fresh: tuple[str, ...]
    edges: Mapping[ir.Edge, Any]
    controls: Mapping[str, Any]
    shown: Mapping[str, ir.Edge]

    @property
    def stand_ins(self) -> set[str]:
        """Names of nodes that are not to be imported."""
        return {edge[0] for edge in self.edges} | self.controls.keys()


def increment(
    nodes: Sequence[Any], definitions: Definitions, placed: Placed
) -> Increment:
    """New nodes as a graph by itself.

    Args:
      nodes: their definitions, none of which is placed.
      definitions: of the whole graph.
      placed: what the twin has.
    """
    return _Making(definitions, placed).make(nodes)


class _Making:
    def __init__(self, definitions: Definitions, placed: Placed) -> None:
        self._definitions = definitions
        self._placed = placed
        self._proto = tf.compat.v1.GraphDef()
        self._names: set[str] = set()
        self._edges: dict[ir.Edge, Any] = {}
        self._controls: dict[str, Any] = {}
        self._shown: dict[str, ir.Edge] = {}
        self._texts: dict[ir.Edge, str] = {}

    def make(self, nodes: Sequence[Any]) -> Increment:
        if self._definitions.versions is not None:
            self._proto.versions.CopyFrom(self._definitions.versions)
        fresh = {node.name: None for node in nodes}  # in order
        self._names.update(fresh)
        self._proto.node.extend(nodes)
        for node in list(self._proto.node):
            for index, text in enumerate(node.input):
                name = source_of(text)
                if name in fresh:
                    continue
                if text.startswith("^"):
                    self._control(name)
                else:
                    node.input[index] = self._data(_edge(text))
        self._proto.library.CopyFrom(self._definitions.library(nodes))
        return Increment(
            proto=self._proto,
            fresh=tuple(fresh),
            edges=self._edges,
            controls=self._controls,
            shown=self._shown,
        )

    def _control(self, name: str) -> None:
        if name not in self._names:
            if self._whole(name):
                self._copy(name)
            else:
                self._add(name, "NoOp")
        self._controls[name] = self._placed.operation(name)

    def _whole(self, name: str) -> bool:
        """Whether a placed node may be seen whole: a constant, a variable."""
        reads = self._definitions.nodes[name].input
        return not reads and self._placed.unchanged(name)

    def _copy(self, name: str) -> None:
        self._proto.node.add().CopyFrom(self._definitions.nodes[name])
        self._names.add(name)

    def _data(self, edge: ir.Edge) -> str:
        if edge not in self._texts:
            make = self._source if self._whole(edge[0]) else self._stand_in
            self._texts[edge] = make(edge)
        return self._texts[edge]

    def _source(self, edge: ir.Edge) -> str:
        name, index = edge
        if name not in self._names:
            self._copy(name)
        self._edges[edge] = self._placed.operation(name).outputs[index]
        return f"{name}:{index}" if index else name

    def _stand_in(self, edge: ir.Edge) -> str:
        node = self._definitions.nodes[edge[0]]
        tensor = self._placed.operation(edge[0]).outputs[edge[1]]
        number = tensor.dtype.as_datatype_enum
        name = f"{edge[0]}/amp_given_{edge[1]}"
        reference = number > ir.REF_OFFSET  # a placeholder cannot be one
        made = self._add(name, "VariableV2" if reference else "Placeholder")
        made.attr["dtype"].type = number % ir.REF_OFFSET
        if reference:
            made.attr["shape"].shape.unknown_rank = True
        if self._placed.behind(edge[0]):
            made.attr[ir.UNSCALE].b = True
        if ir.SEED in node.attr:
            made.attr[ir.SEED].CopyFrom(node.attr[ir.SEED])
        self._edges[name, 0] = tensor
        self._shown[name] = edge
        for target in self._placed.steps(edge):
            cast = f"{name}_to_{ir.DTYPE_NAMES[target]}"
            made = self._add(cast, "Cast", name)
            made.attr["SrcT"].type, made.attr["DstT"].type = number, target
            self._shown[cast] = edge
            name, number = cast, target
        return name

    def _add(self, name: str, op: str, *inputs: str) -> Any:
        self._names.add(name)
        return self._proto.node.add(name=name, op=op, input=inputs)


def bypassed(
    nodes: Iterable[Any], made: ir.Graph, shown: Mapping[str, ir.Edge]
) -> set[str]:
    """Nodes of which a reader no longer takes the value, itself or cast.

    What is fed to one would not reach all who read it.

    Args:
      nodes: the new nodes, as the user's graph has them.
      made: the graph that they were rewritten to.
      shown: the user's edge that a stand-in's value is.
    """
    clustered = any(node.has(ir.CLUSTER) for node in made.nodes.values())

    def origin(edge: ir.Edge) -> str:
        node = made.nodes[edge[0]]
        while edge[0] not in shown and node.op == "Cast" and "/amp_" in edge[0]:
            edge = node.inputs[0]
            node = made.nodes[edge[0]]
        return shown.get(edge[0], edge)[0]

    found = set()
    for node in nodes:
        taken = {origin(edge) for edge in made.nodes[node.name].inputs}
        read = {source_of(text) for text in node.input if not text.startswith("^")}
        found |= read - taken
        if clustered and (node.op in FUSIBLE or node.op == "Const"):
            found.add(node.name)  # it may be in a cluster
    return found
