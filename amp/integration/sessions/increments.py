"""Makes a graph of the nodes that a run needs and that the twin does not have yet.

Such a graph is an *increment*. `policy_view` has it rewritten and imports it into the
twin; nothing is rewritten, imported or run here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration.sessions.user_graph import Definitions, source_of


class ViewOfTwin(Protocol):
    """What an increment has to know of the nodes that the twin has already.

    A `PolicyView` is one.
    """

    def operation(self, name: str) -> Any:
        """The twin's operation for the user's of that name, None if there is none."""

    def unchanged(self, name: str) -> bool:
        """Whether the twin has a node as the user's graph has it, with its inputs."""

    def steps(self, edge: ir.Edge) -> tuple[int, ...]:
        """The types to cast the twin's tensor to, one after another, for an edge.

        The result has the type and value of the user's tensor. Empty if the twin's
        tensor has them already.
        """

    def behind(self, name: str) -> bool:
        """Whether a node depends on an unscaled gradient (attribute UNSCALE)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Increment:
    """New nodes, with stand-ins for the nodes of the twin that they read.

    A stand-in is a placeholder, a copied constant or variable, or a `NoOp` for a
    control input. It is replaced by the twin's own node when the rest is imported.

    Attributes:
      proto: a GraphDef of new nodes and stand-ins.
      fresh: the names of the new nodes, in the order in which the user built them.
      edges: for each output of a stand-in, the twin's tensor that replaces it.
      controls: for each stand-in that is a control input, the twin's operation.
      shown: for each stand-in that has a value, by name, the user's edge with that
        value.
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
    nodes: Sequence[Any], definitions: Definitions, twin: ViewOfTwin
) -> Increment:
    """Makes a graph of new nodes, with stand-ins for the twin's nodes that they read.

    Args:
      nodes: the NodeDefs of nodes that are not in the twin, in the order in which the
        user built them.
      definitions: of the user's whole graph.
      twin: the nodes that the twin has.
    """
    return _Making(definitions, twin).make(nodes)


class _Making:
    """An increment while it is made.

    Args:
      definitions, twin: as of `increment`.
    """

    def __init__(self, definitions: Definitions, twin: ViewOfTwin) -> None:
        self._definitions = definitions
        self._twin = twin
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
                    node.input[index] = self._data(serde.graph_edge(text))
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
        self._controls[name] = self._twin.operation(name)

    def _whole(self, name: str) -> bool:
        """Whether a node of the twin is copied into the increment.

        Nodes without inputs are, such as constants and variables, because the rewriter
        uses their values or types. Others get a placeholder as a stand-in.
        """
        reads = self._definitions.nodes[name].input
        return not reads and self._twin.unchanged(name)

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
        self._edges[edge] = self._output(edge)
        return f"{name}:{index}" if index else name

    def _output(self, edge: ir.Edge) -> Any:
        """The twin's tensor for an edge of the user's graph.

        Raises:
          InvalidArgumentError: the user's code gave a node more outputs after a session
            had run it (the gradient of a `tf.cond` does). TensorFlow says the same.
        """
        name, index = edge
        outputs = self._twin.operation(name).outputs
        if index < len(outputs):
            return outputs[index]
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Connecting to invalid output {index} of source node {name} which has "
            f"{len(outputs)} outputs. Try using "
            "tf.compat.v1.experimental.output_all_intermediates(True).",
        )

    def _stand_in(self, edge: ir.Edge) -> str:
        node = self._definitions.nodes[edge[0]]
        tensor = self._output(edge)
        number = tensor.dtype.as_datatype_enum
        name = f"{edge[0]}/amp_given_{edge[1]}"
        reference = number > ir.REF_OFFSET  # a placeholder cannot be one
        made = self._add(name, "VariableV2" if reference else "Placeholder")
        made.attr["dtype"].type = number % ir.REF_OFFSET
        if reference:
            made.attr["shape"].shape.unknown_rank = True
        if self._twin.behind(edge[0]):
            made.attr[ir.UNSCALE].b = True
        if ir.SEED in node.attr:
            made.attr[ir.SEED].CopyFrom(node.attr[ir.SEED])
        self._edges[name, 0] = tensor
        self._shown[name] = edge
        for target in self._twin.steps(edge):
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
    """Finds nodes whose value some reader no longer reads from them after a rewrite.

    A run that feeds such a node cannot use the rewritten nodes, because the value fed
    would not reach that reader. Reading a cast of the node's value is no such case.

    Args:
      nodes: the new nodes, as the user's graph has them.
      made: the graph that they were rewritten to.
      shown: as of `Increment`.

    Returns:
      The names of the nodes.
    """
    clustered = any(node.has(ir.CLUSTER) for node in made.nodes.values())

    def origin(edge: ir.Edge) -> str:
        node = made.nodes[edge[0]]
        while edge[0] not in shown and "/amp_" in edge[0]:
            if facts(node.op).kind is not Kind.CAST:
                break
            edge = node.inputs[0]
            node = made.nodes[edge[0]]
        return shown.get(edge[0], edge)[0]

    found = set()
    for node in nodes:
        taken = {origin(edge) for edge in made.nodes[node.name].inputs}
        read = {source_of(text) for text in node.input if not text.startswith("^")}
        found |= read - taken
        row = facts(node.op)
        if clustered and (row.fusible or row.kind is Kind.CONSTANT):
            found.add(node.name)  # it may be in a cluster
    return found
