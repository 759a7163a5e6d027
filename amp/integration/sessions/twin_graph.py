"""`TwinGraph`: the graph that sessions run in place of the user's graph.

It begins empty. Before a run, the `PolicyView` of the run's policy adds the nodes that
the run needs. Which nodes are imported, and when, is not decided here.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir
from amp.integration.runtime import definitions
from amp.integration.runtime.node_import import import_nodes
from amp.integration.sessions.user_graph import Definitions, scopes_of


class TwinGraph:
    """A graph with the nodes that sessions of the user's graph have run so far.

    Nodes are only added and never changed, since variables and other state belong to
    them. A node has the name that it has in the user's graph. If it is needed both
    rewritten and as it was, the one that is added second gets another name.

    Args:
      user: the user's graph, held weakly.

    Attributes:
      graph: the twin, a `tf.Graph`.
      definitions: the nodes of the user's graph.
      shared: the operations that are the same under every policy, by the user's name:
        they read nothing that was rewritten. All variables are, queues and iterators.
    """

    def __init__(self, user: tf.Graph) -> None:
        self.graph: Any = tf.Graph()
        self.definitions = Definitions()
        self.shared: dict[str, Any] = {}
        self._user = weakref.ref(user)
        self._taken: set[str] = set()  # names of nodes, and their name scopes

    @property
    def user(self) -> Any:
        """The user's graph; sessions keep it alive."""
        return self._user()

    def user_tensor(self, edge: ir.Edge) -> Any:
        """A tensor of the user's graph."""
        return self.user.get_operation_by_name(edge[0]).outputs[edge[1]]

    def user_shape(self, edge: ir.Edge) -> ir.Shape:
        """The static shape of a tensor of the user's graph; None if there is none."""
        try:
            tensor = self.user_tensor(edge)
        except (KeyError, IndexError):
            return None
        return definitions.dimensions(tensor.shape)

    def outdated(self) -> bool:
        """Whether the user's code has changed nodes that are in the twin already.

        TensorFlow's sessions ignore changes of nodes that they have run, so sessions
        that use this twin keep it. A session that begins now gets a new twin.
        """
        # Always read anew: the graph's version tells of new nodes, not of changed ones.
        fresh = Definitions()
        fresh.update(self.user)
        known = self.definitions.nodes
        self.definitions, now = fresh, fresh.nodes
        return any(known[name] != now.get(name) for name in self._taken & known.keys())

    def add(
        self, proto: Any, edges: Mapping[ir.Edge, Any], controls: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Imports nodes into the twin.

        Args:
          proto: a GraphDef; a node whose name is taken is renamed in it.
          edges: for each edge that the nodes read of the twin, the twin's tensor.
          controls: for each control input from the twin, its operation, by name.

        Returns:
          The new operations, by the names that the nodes had when given.
        """
        names = self._renamed(proto)
        taken = {each for name in names.values() for each in (name, *scopes_of(name))}
        new = taken - self._taken
        self._taken |= new  # before the import: Ctrl-C may come right after it
        try:
            import_nodes(self.graph, proto, edges, controls)
        except Exception:
            self._taken -= new  # nothing was imported
            raise
        find = self.graph.get_operation_by_name
        return {given: find(name) for given, name in names.items()}

    def _renamed(self, proto: Any) -> dict[str, str]:
        names: dict[str, str] = {}
        for node in proto.node:
            name, count = node.name, 1
            while name in self._taken:
                count += 1
                name = f"{node.name}/amp_{count}"
            names[node.name] = name
        changed = {given: name for given, name in names.items() if given != name}
        if changed:
            for node in proto.node:
                _rename(node, changed)
        return names


def _rename(node: Any, changed: Mapping[str, str]) -> None:
    node.name = changed.get(node.name, node.name)
    for index, text in enumerate(node.input):
        prefix = "^" if text.startswith("^") else ""
        name, colon, port = text.removeprefix("^").partition(":")
        if name in changed:
            node.input[index] = f"{prefix}{changed[name]}{colon}{port}"
    if "_class" in node.attr:
        groups = node.attr["_class"].list.s
        for index, group in enumerate(groups):
            name = group.decode().removeprefix("loc:@")
            if name in changed:
                groups[index] = f"loc:@{changed[name]}".encode()
