"""A digest of a traced graph: the same for graphs that compute the same.

Reads protos and computes nothing. No types are decided here: what the package makes of
the graph is `plans`' matter.
"""

from __future__ import annotations

import graphlib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

# Attributes that differ between processes and change no value: random operations of the
# suite take their seeds from tensors, and variables are arguments of a function.
_LEFT_OUT = frozenset({"seed", "seed2", "shared_name", "container", "config_proto"})


def digest(graph: Any) -> str:
    """The digest of a function's graph and of those it calls, in hexadecimal.

    Of each node its op, its attributes with the values of constants, and its inputs'
    digests enter, so that the order of independent nodes does not matter. Names do not
    enter: TensorFlow numbers them by what else the process has made.

    Args:
      graph: a `FuncGraph`, without loops of TensorFlow 1.
    """
    proto = graph.as_graph_def()
    bodies = {function.signature.name: function for function in proto.library.function}
    places = {tensor.op.name: place for place, tensor in enumerate(graph.inputs)}
    known, nodes = _of_nodes(proto.node, places, _Functions(bodies))
    return _hashed([nodes, *(_edge(tensor.name, known) for tensor in graph.outputs)])


class _Functions:
    """Digests of functions, each made once.

    Args:
      bodies: the functions that there are, by name.
    """

    def __init__(self, bodies: Mapping[str, Any]) -> None:
        self._bodies, self._known = bodies, dict[str, str]()

    def of(self, name: str) -> str:
        """The digest of a function; of one that calls itself, a fixed text."""
        if name not in self._known:
            self._known[name] = "recursive"
            body = self._bodies[name]
            args = [a.name for a in body.signature.input_arg]
            places = {arg: place for place, arg in enumerate(args)}
            edges, nodes = _of_nodes(body.node_def, places, self)
            returned = [
                _edge(body.ret[out.name], edges) for out in body.signature.output_arg
            ]
            self._known[name] = _hashed([nodes, *returned])
        return self._known[name]

    def holds(self, name: str) -> bool:
        return name in self._bodies


def _of_nodes(
    nodes: Iterable[Any], places: Mapping[str, int], functions: _Functions
) -> tuple[dict[str, str], str]:
    """The digests of nodes by name, and of all of them together.

    Args:
      nodes: in any order, without a cycle.
      places: of arguments, by name.
      functions: those that nodes call.
    """
    known = {name: f"argument {place}" for name, place in places.items()}
    named = {node.name: node for node in nodes if node.name not in places}
    reads = {
        name: {edge.lstrip("^").partition(":")[0] for edge in node.input}
        for name, node in named.items()
    }
    for name in graphlib.TopologicalSorter(reads).static_order():
        if name in known:
            continue
        node = named[name]
        inputs = [_edge(edge, known) for edge in node.input if edge[:1] != "^"]
        controls = sorted(_edge(e[1:], known) for e in node.input if e[:1] == "^")
        known[name] = _hashed(
            [_op(node, functions), *_attributes(node, functions), *inputs, *controls]
        )
    return known, _hashed(sorted(known.values()))


def _op(node: Any, functions: _Functions) -> str:
    return functions.of(node.op) if functions.holds(node.op) else node.op


def _attributes(node: Any, functions: _Functions) -> list[str]:
    return [
        f"{name}={_value(value, functions)}"
        for name, value in sorted(node.attr.items())
        if name not in _LEFT_OUT and not name.startswith("_")
    ]


def _value(value: Any, functions: _Functions) -> str:
    called = [value.func] if value.HasField("func") else list(value.list.func)
    if called:
        return " ".join(functions.of(each.name) for each in called)
    return value.SerializeToString(deterministic=True).hex()


def _edge(edge: str, known: Mapping[str, str]) -> str:
    """The digest of a tensor: of what makes it, and which of its results it is."""
    name, _, port = edge.partition(":")
    return f"{known[name]}:{port or 0}"


def _hashed(texts: Iterable[str]) -> str:
    return hashlib.blake2b("\x1f".join(texts).encode(), digest_size=8).hexdigest()
