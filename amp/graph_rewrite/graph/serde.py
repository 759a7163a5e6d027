"""Reads GraphDefs and FunctionDefs into `ir.Graph`, and writes them back.

No other module than this and `attributes` may touch a protobuf class, and nothing is
decided here. A node that no phase changed is written with the bytes it was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf import message  # type: ignore[import-untyped]
from tensorflow.core.framework import (
    function_pb2,
    graph_pb2,
    node_def_pb2,
    variable_pb2,
)
from tensorflow.core.protobuf import saved_model_pb2

from amp.errors import GraphError
from amp.graph_rewrite.graph import attributes, ir, op_schema

_INPUT_SHAPES = "_input_shapes"  # of a function's arguments, in order


def read_graph(
    proto: graph_pb2.GraphDef,
    shape: ir.ShapeSource = ir.unknown_shape,
    traced: Callable[[Any], ir.ShapeSource] | None = None,
) -> ir.Module:
    """Reads a GraphDef and its function library.

    Args:
      proto: the GraphDef.
      shape: gives the shapes of its edges.
      traced: for a FunctionDef, returns what gives the shapes of its edges; by default
        the `_output_shapes` attributes in it.

    Raises:
      GraphError: two nodes have one name, or an input does not exist.
    """
    library = op_schema.lookup_in({f.signature.name: f for f in proto.library.function})
    nodes = _read_nodes(proto.node, graph_edge, "the GraphDef")
    main = ir.Graph("", nodes, origin=proto, shape=shape)
    functions = {
        f.signature.name: read_function(f, library, (traced or _noted_shapes)(f))
        for f in proto.library.function
    }
    return ir.Module(main, functions)


def _noted_shapes(proto: function_pb2.FunctionDef) -> ir.ShapeSource:
    """Shapes from the `_output_shapes` attributes that SavedModels are written with."""
    noted = {node.name: node.attr for node in proto.node_def}
    for index, arg in enumerate(proto.signature.input_arg):
        if index in proto.arg_attr:
            noted[arg.name] = proto.arg_attr[index].attr

    def shape(edge: ir.Edge) -> ir.Shape:
        attrs = noted.get(edge[0])
        if attrs is None or "_output_shapes" not in attrs:
            return None
        shapes = attrs["_output_shapes"].list.shape
        return attributes.sizes(shapes[edge[1]]) if edge[1] < len(shapes) else None

    return shape


def read_function(
    proto: function_pb2.FunctionDef,
    lookup: op_schema.Lookup = op_schema.schema,
    shape: ir.ShapeSource = ir.unknown_shape,
) -> ir.Graph:
    """Reads a FunctionDef.

    Args:
      proto: the FunctionDef.
      lookup: gives the schema of every op, or function called as an op, in it.
      shape: gives the shapes of its edges.

    Raises:
      GraphError: two nodes have one name, an input does not exist, or an argument is a
        list.
    """
    name = proto.signature.name
    where = f"function {name}"
    for arg in (*proto.signature.input_arg, *proto.signature.output_arg):
        if arg.number_attr or arg.type_list_attr:
            raise GraphError(
                f"{arg.name!r} is a list of tensors",
                where=where,
                allowed="functions whose arguments and results are single tensors",
                remedy="trace the function with tf.function, or leave this graph as is",
            )
    reader = _FunctionEdges(proto, lookup, where)
    nodes = _read_nodes(proto.node_def, reader.edge, where)
    returns = proto.ret
    return ir.Graph(
        name,
        nodes,
        args=tuple(ir.Argument(a.name, a.type) for a in proto.signature.input_arg),
        results=tuple(
            ir.Result(a.name, a.type, reader.edge(returns[a.name]))
            for a in proto.signature.output_arg
        ),
        control_results=tuple(sorted(set(proto.control_ret.values()))),
        origin=proto,
        shape=shape,
        flags=frozenset(key for key, value in proto.attr.items() if value.b),
        attributes=frozenset(proto.attr),
    )


def _read_nodes(
    protos: Iterable[node_def_pb2.NodeDef], edge: Callable[[str], ir.Edge], where: str
) -> dict[str, ir.Node]:
    nodes: dict[str, ir.Node] = {}
    for proto in protos:
        name, inputs, controls = proto.name, [], []
        if name in nodes:
            raise GraphError(
                f"two nodes are called {name!r}",
                where=where,
                allowed="every node has a name of its own",
                remedy="rename one of them where the graph is built",
            )
        for text in proto.input:
            if text in ("", "^"):
                raise _damaged(f"an input of node {name!r} has no name", where)
            if text[0] == "^":
                controls.append(text[1:])
            else:
                inputs.append(edge(text))
        nodes[name] = ir.Node(
            name,
            proto.op,
            tuple(inputs),
            tuple(controls),
            proto.device,
            attributes.NodeAttributes(proto),
            pristine=True,
        )
    return nodes


def _damaged(found: str, where: str) -> GraphError:
    return GraphError(
        found,
        where=where,
        allowed="a node's output port, or an argument",
        remedy="rebuild the graph or function; its definition is damaged",
    )


def graph_edge(text: str) -> ir.Edge:
    """The edge in the text of a graph's input: `a:1` is output 1 of a, `a` output 0."""
    name, _, index = text.rpartition(":")
    return (name, int(index)) if name and index.isdecimal() else (text, 0)


class _FunctionEdges:
    """Converts a FunctionDef's `node:port:index` into (node, flat output index)."""

    def __init__(
        self, proto: function_pb2.FunctionDef, lookup: op_schema.Lookup, where: str
    ) -> None:
        self._nodes = {node.name: node for node in proto.node_def}
        self._lookup = lookup
        self._where = where
        self._offsets: dict[tuple[str, str], int] = {}
        self._known: dict[str, ir.Edge] = {}

    def edge(self, text: str) -> ir.Edge:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._read(text)
        return known

    def _read(self, text: str) -> ir.Edge:
        parts = text.split(":")
        if len(parts) == 1:
            return (text, 0)
        of_argument = len(parts) == 2 and parts[0] not in self._nodes
        if len(parts) == 2 and not of_argument:  # a node's port at 0
            parts.append("0")
        if len(parts) > 3 or not parts[-1].isdecimal():
            raise _damaged(f"the edge {text!r} leads nowhere", self._where)
        if of_argument:
            return (parts[0], int(parts[1]))
        node, port, index = parts
        key = (node, port)
        if key not in self._offsets:
            self._offsets[key] = self._offset(node, port)
        return (node, self._offsets[key] + int(index))

    def _offset(self, name: str, port: str) -> int:
        proto = self._nodes.get(name)
        known = self._lookup(proto.op) if proto is not None else None
        if proto is not None and known is not None:
            if len(known.outputs) == 1 and known.outputs[0].name == port:
                return 0
            node = ir.Node(name, proto.op, (), (), "", attributes.NodeAttributes(proto))
            for flat, slot in enumerate(known.signature(node).outs):
                if slot.port == port:
                    return flat
        if proto is not None and known is None:
            raise GraphError(
                f"the op {proto.op!r} of node {name!r} is not registered",
                where=self._where,
                allowed="ops of TensorFlow, and of libraries that were loaded",
                remedy="load its library first: tf.load_op_library, or --library",
            )
        raise _damaged(f"the edge {name}:{port} leads nowhere", self._where)


def write_graph(module: ir.Module) -> graph_pb2.GraphDef:
    """Writes a module that `read_graph` has read.

    Unchanged nodes and functions are written with the bytes they were read from. A
    changed function under its old name replaces the one that was read.
    """
    proto = graph_pb2.GraphDef()
    proto.CopyFrom(module.main.origin)
    del proto.node[:]
    for node in module.main.nodes.values():
        _write_node(proto.node.add(), node, _write_graph_edge)
    known = {f.signature.name: f for f in proto.library.function}
    schemas = op_schema.lookup_of(module)
    for name, function in module.functions.items():
        if name not in known:
            proto.library.function.append(write_function(function, schemas))
        elif not all(node.pristine for node in function.nodes.values()):
            known[name].CopyFrom(write_function(function, schemas))
    return proto


def write_nodes(nodes: Iterable[ir.Node]) -> graph_pb2.GraphDef:
    """Writes a GraphDef of nodes that read nothing but one another.

    Args:
      nodes: none of them pristine, as edges are written differently in functions.
    """
    proto = graph_pb2.GraphDef()
    for node in nodes:
        _write_node(proto.node.add(), node, _write_graph_edge)
    return proto


def write_function(
    graph: ir.Graph, lookup: op_schema.Lookup = op_schema.schema
) -> function_pb2.FunctionDef:
    """Writes a function as a FunctionDef under the name that the graph has."""
    proto = function_pb2.FunctionDef()
    if graph.origin is not None:
        proto.CopyFrom(graph.origin)
    proto.signature.name = graph.name
    _write_ports(proto.signature.input_arg, graph.args)
    _write_ports(proto.signature.output_arg, graph.results)
    if _INPUT_SHAPES in proto.attr:
        noted = proto.attr[_INPUT_SHAPES].list.shape
        for arg in graph.args[len(noted) :]:
            attributes.write_shape(noted.add(), graph.shape((arg.name, 0)))
    writer = _EdgeWriter(graph, lookup)
    del proto.node_def[:]
    for node in graph.nodes.values():
        _write_node(proto.node_def.add(), node, writer.text)
    for result in graph.results:
        proto.ret[result.name] = writer.text(result.edge)
    return proto


def _write_ports(protos: Any, ports: Sequence[ir.Argument | ir.Result]) -> None:
    """Writes the types of arguments or results, adding those that are not there yet."""
    for port in ports[len(protos) :]:
        protos.add(name=port.name)
    for proto, port in zip(protos, ports, strict=True):
        if proto.type != port.type:
            proto.type = port.type


class _EdgeWriter:
    """Converts (node, flat output index) back into `node:port:index`."""

    def __init__(self, graph: ir.Graph, lookup: op_schema.Lookup) -> None:
        self._graph = graph
        self._lookup = lookup
        self._texts: dict[ir.Edge, str] = {}

    def text(self, edge: ir.Edge) -> str:
        if edge not in self._texts:
            self._texts[edge] = self._make(edge)
        return self._texts[edge]

    def _make(self, edge: ir.Edge) -> str:
        name, flat = edge
        node = self._graph.nodes.get(name)
        if node is None:
            return name
        known = self._lookup(node.op)
        if known is None:
            raise GraphError(
                f"op {node.op!r} is not registered",
                where=f"function {self._graph.name}, node {name}",
                allowed="ops that this TensorFlow registers, or functions at hand",
                remedy="load the library that registers the op first",
            )
        if len(known.outputs) == 1:
            return f"{name}:{known.outputs[0].name}:{flat}"
        slot = known.signature(node).outs[flat]
        return f"{name}:{slot.port}:{slot.index}"


def _write_graph_edge(edge: ir.Edge) -> str:
    return edge[0] if edge[1] == 0 else f"{edge[0]}:{edge[1]}"


def _write_node(
    proto: node_def_pb2.NodeDef, node: ir.Node, text: Callable[[ir.Edge], str]
) -> None:
    if isinstance(node.attrs, attributes.NodeAttributes):
        proto.CopyFrom(node.attrs.proto)
        if node.pristine:
            return
    proto.name, proto.op, proto.device = node.name, node.op, node.device
    del proto.input[:]
    proto.input.extend([text(edge) for edge in node.inputs])
    proto.input.extend([f"^{name}" for name in node.controls])
    for name, value in node.updates.items():
        attributes.write(proto.attr[name], value)


def public_attributes(node: ir.Node) -> dict[str, Any]:
    """A node's attributes as AttrValues by name, without private ones (`_...`)."""
    proto = node_def_pb2.NodeDef()
    _write_node(proto, node, _write_graph_edge)
    return {n: value for n, value in proto.attr.items() if not n.startswith("_")}


def graph_proto_types() -> tuple[type, ...]:
    """The protobuf classes that a user may pass a graph as."""
    return (graph_pb2.GraphDef,)


def saved_model_type() -> Any:
    """The protobuf class of a SavedModel's `saved_model.pb`."""
    return saved_model_pb2.SavedModel


def variable_names(serialized: bytes) -> list[str]:
    """The tensor and operation names in a serialized VariableDef of a collection.

    Returns [] if the bytes are something else.
    """
    try:
        variable = variable_pb2.VariableDef.FromString(serialized)
    except message.DecodeError:
        return []
    slots = ("variable", "initializer", "snapshot", "initial_value")
    return [name for slot in slots if (name := getattr(variable, f"{slot}_name"))]
