"""The definitions of the nodes of the user's graph, and on which others they depend.

Used by the other modules of sessions. Node definitions are only read
here; nothing is rewritten, imported or run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph import op_schema, serde
from amp.graph_rewrite.graph.calls import CALLS
from amp.graph_rewrite.ops.op_table import COMPUTE, facts

# From so many new nodes on, reading the whole graph is faster than reading each.
_MANY = 200


# Whether the node of a name is there already, so that it is not needed.
Has: TypeAlias = Callable[[str], bool]


class Definitions:
    """The node and function definitions of the user's graph, as of the last `update`.

    Attributes:
      nodes: the NodeDef of each node, by name.
      order: the position of each node in the order in which the user built them.
      versions: the graph's VersionDef, None until it was read.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.order: dict[str, int] = {}
        self.versions: Any = None
        self._functions: dict[str, Any] = {}
        self._gradients: list[Any] = []
        self._implementing: dict[bytes, list[str]] = {}  # names, by interface
        self._version = -1
        self._readers: dict[str, list[str]] = {}  # of tensor lists

    def behind(self, graph: Any) -> bool:
        """Whether `graph` has grown since the last update."""
        return bool(graph.version != self._version)

    def update(self, graph: Any) -> None:
        """Reads the nodes that were added to `graph` since the last update.

        After an interruption the next update reads what is missing.
        """
        if not self.behind(graph):
            return
        version = graph.version
        operations = graph.get_operations()
        new = [
            operation.node_def for operation in operations[len(self.nodes) :][:_MANY]
        ]
        if len(new) == _MANY or not self.nodes or any(map(_calls, new)):
            proto = graph.as_graph_def()
            new, self.versions = proto.node, proto.versions
            self._functions = {f.signature.name: f for f in proto.library.function}
            self._gradients = list(proto.library.gradient)
            self._implementing = _by_interface(proto.library.function)
        nodes = {node.name: node for node in new}
        if any(map(_lists, new)):
            self._readers = _readers({**self.nodes, **nodes}, graph)
        later = (name for name in nodes if name not in self.order)
        self.order.update({n: i for i, n in enumerate(later, len(self.order))})
        self.nodes.update(nodes)
        self._version = version

    def needed(self, roots: Iterable[str], has: Has) -> list[Any]:
        """The nodes that some nodes depend on and that are not there, in built order.

        With a node `a/b` comes a node `a`, if there is one, because a graph that has
        `a/b` cannot import `a`. With a node that makes a tensor list come the readers
        of the list, because all must agree on the type of its elements.

        Args:
          roots: the names of the nodes to begin with, which are included.
          has: says which are there.
        """
        found: set[str] = set()
        waiting = [name for name in roots if not has(name)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                scopes = (scope for scope in scopes_of(name) if scope in self.nodes)
                readers = self._readers.get(name, ())
                wanted = (*sources_of(self.nodes[name]), *scopes, *readers)
                waiting += [other for other in wanted if not has(other)]
        return [self.nodes[name] for name in sorted(found, key=self.order.__getitem__)]

    def missing(self, has: Has) -> list[Any]:
        """All nodes that are not there, in built order."""
        return [node for name, node in self.nodes.items() if not has(name)]

    def ancestors(self, roots: Iterable[str]) -> set[str]:
        """The names of all nodes that `roots` depend on, themselves included."""
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += sources_of(self.nodes[name])
        return found

    def waiting_for(self, names: Container[str]) -> set[str]:
        """The nodes that have some as control inputs, and all that depend on these."""
        found: set[str] = set()
        count = -1
        while count != len(found):  # again only where loops of TensorFlow 1 go round
            count = len(found)
            for name, node in self.nodes.items():
                waits = any(t[0] == "^" and t[1:] in names for t in node.input)
                if waits or not found.isdisjoint(map(source_of, node.input)):
                    found.add(name)
        return found

    def library(self, nodes: Iterable[Any]) -> Any:
        """The functions that nodes reach, as a FunctionDefLibrary.

        With a function come those that implement the same interface, called or not:
        Grappler's implementation selector calls the one that is for the device.
        """
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
                waiting += map(_Call, self._alternatives(self._functions[name]))
                if name in gradients:
                    library.gradient.append(gradients[name])
                    waiting.append(_Call(gradients[name].gradient_func))
        return library

    def _alternatives(self, function: Any) -> Sequence[str]:
        """The functions that implement the same interface."""
        if _INTERFACE not in function.attr:  # to read it would add it
            return ()
        return self._implementing[function.attr[_INTERFACE].s]

    def compute(self, nodes: Sequence[Any]) -> bool:
        """Whether nodes, or functions they call, have an op that gains by 16 bits."""
        functions = self.library(nodes).function
        bodies = (node for function in functions for node in function.node_def)
        return any(node.op in COMPUTE for node in (*nodes, *bodies))


# The attribute of functions of which any may run in place of another.
_INTERFACE = "api_implements"


def _by_interface(functions: Iterable[Any]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for function in functions:
        if _INTERFACE in function.attr:
            name = function.signature.name
            found.setdefault(function.attr[_INTERFACE].s, []).append(name)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A call of a function, with the fields of a NodeDef that `_called` reads."""

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
    """Whether an output of a node may be a tensor list."""
    return node.op in CALLS or facts(node.op).same_list


def _readers(nodes: Mapping[str, Any], graph: Any) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for name, index in map(serde.graph_edge, node.input):
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
    """The names of a node's inputs, control inputs and nodes it is colocated with."""
    for text in node.input:
        yield source_of(text)
    if "_class" in node.attr:
        for group in node.attr["_class"].list.s:
            name = group.decode().removeprefix("loc:@")
            if name != node.name:
                yield name


def source_of(text: str) -> str:
    """The node in the text of an input or control input (`a:1`, `^a`)."""
    return text[1:] if text.startswith("^") else serde.graph_edge(text)[0]


def before_compute(nodes: Sequence[Any]) -> set[str]:
    """The stateful nodes, and what they depend on, that read no compute op's result.

    Nodes of a float32 run that the views of all policies may share: variables and
    queues must exist once. Other nodes are left for each view to add by itself.

    Args:
      nodes: definitions in built order.

    Returns:
      The names of those nodes.
    """
    after: set[str] = set()
    for node in nodes:
        if node.op in COMPUTE or not after.isdisjoint(map(source_of, node.input)):
            after.add(node.name)
    wanted: set[str] = set()
    for node in reversed(nodes):
        stateful = node.name in wanted or op_schema.is_stateful(node.op)
        if stateful and node.name not in after:
            wanted.add(node.name)
            wanted.update(map(source_of, node.input))
    return wanted


def unaltered(
    fresh: Sequence[str], unchanged: set[str], nodes: Mapping[str, Any], has: Has
) -> set[str]:
    """Those of new nodes that are unchanged and read nothing but such nodes.

    Args:
      fresh: the names of the new nodes.
      unchanged: those of them that were not changed.
      nodes: the definitions of all nodes, by name.
      has: says which nodes that are not new are there unchanged, with their inputs.
    """
    new, found, count = set(fresh), set(unchanged), -1
    while count != len(found):
        count = len(found)
        for name in fresh:
            others = set(map(source_of, nodes[name].input)) - found
            if name in found and any(one in new or not has(one) for one in others):
                found.discard(name)
    return found
