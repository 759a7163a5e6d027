"""Loops and branches of `tf.compat.v1`: frames, loop variables, what may not run.

What TensorFlow's executor says of `Enter`, `Merge`, `Switch`, `NextIteration` and
`Exit`; no choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.graph import ir

# The names of the loops that a node runs in, outermost first; () outside of loops.
Frame: TypeAlias = tuple[str, ...]
# Each is an edge with a predicate, and which value it must have for a node to run.
Conditions: TypeAlias = frozenset[tuple[ir.Edge, int]]

_NONE: Conditions = frozenset()
_SWITCHES = ("Switch", "RefSwitch")


@dataclasses.dataclass(frozen=True, slots=True)
class LoopVariable:
    """The nodes of a loop variable, which `tf.compat.v1.while_loop` builds like this::

        enter -> merge -> switch -> (the body) -> back -> merge
                             |-> exit

    Attributes:
      frame: the loop.
      enter: gives the initial value.
      merge: gives the value of each trip.
      back: the NextIteration that hands the value of a trip on to the next one.
      switches: hand the value to the body or, at the end, out of the loop.
      exits: hand the last value out, with copies (Identity) on the way there.
      tested: whether the loop's condition reads the value.
    """

    frame: Frame
    enter: str
    merge: str
    back: str
    switches: tuple[str, ...]
    exits: tuple[str, ...]
    tested: bool

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of them: a cast between two would be a cycle, or not be recognised."""
        return (self.enter, self.merge, self.back, *self.switches, *self.exits)


def has_frames(graph: ir.Graph) -> bool:
    """Whether a graph has a loop of `tf.compat.v1`."""
    return "Enter" in graph.ops


def frames(graph: ir.Graph) -> dict[str, Frame]:
    """The frame in which the tensors that a node makes live, for nodes in loops."""
    found: dict[str, Frame] = {}
    if not has_frames(graph):
        return found
    for name in graph.order:
        node = graph.nodes[name]
        frame: Frame = ()
        for source in (*[edge[0] for edge in node.inputs], *node.controls):
            if source in found and len(found[source]) > len(frame):
                frame = found[source]
        if node.op in ("Enter", "RefEnter"):
            frame = (*frame, node.text("frame_name"))
        elif node.op in ("Exit", "RefExit"):
            frame = frame[:-1]
        if frame:
            found[name] = frame
    return found


def not_every_run(graph: ir.Graph) -> set[str]:
    """The nodes of which a run may make no tensor, or one for each trip of a loop."""
    branches = Branches(graph)
    return {*frames(graph), *branches.shares(), *branches.switches}


def loop_variables(graph: ir.Graph) -> tuple[LoopVariable, ...]:
    """The loop variables of a graph's loops.

    A Merge whose inputs are not one Enter and one NextIteration that only it reads is
    none, nor is one whose value no Switch takes by a LoopCond.
    """
    if not has_frames(graph):
        return ()
    within = frames(graph)
    found = (_variable(graph, node, within) for node in graph.nodes.values())
    return tuple(variable for variable in found if variable is not None)


def _variable(
    graph: ir.Graph, node: ir.Node, within: Mapping[str, Frame]
) -> LoopVariable | None:
    if node.op != "Merge" or len(node.inputs) != 2:
        return None
    by_op = {graph.nodes[n].op: n for n, _ in node.inputs if n in graph.nodes}
    enter, back = by_op.get("Enter"), by_op.get("NextIteration")
    if enter is None or back is None:
        return None
    if any(len(graph.readers[name, 0]) != 1 for name in (enter, back)):
        return None
    readers = [name for name, _ in graph.readers.get((node.name, 0), ())]
    switches = tuple(n for n in readers if _ends_trips(graph, graph.nodes[n]))
    if not switches:
        return None
    tested = len(switches) < len(readers)
    exits = tuple(name for switch in switches for name in _exits(graph, (switch, 0)))
    frame = within[node.name]
    return LoopVariable(frame, enter, node.name, back, switches, exits, tested)


def _ends_trips(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether a node is a Switch by the LoopCond of a loop."""
    if node.op not in _SWITCHES:
        return False
    predicate = graph.nodes.get(node.inputs[1][0])
    return predicate is not None and predicate.op == "LoopCond"


def _exits(graph: ir.Graph, edge: ir.Edge) -> Iterator[str]:
    """The Exits that read an edge, and the copies on the way to them."""
    for name, _ in graph.readers.get(edge, ()):
        op = graph.nodes[name].op
        onward = list(_exits(graph, (name, 0))) if op == "Identity" else []
        if op == "Exit" or onward:
            yield name
        yield from onward


class Branches:
    """Under which conditions the nodes of a graph run, where Switches decide on it.

    A node that reads what a Switch did not give does not run either, up to the Merge of
    the branches. Loops are no branches: nodes in frames are not told apart.

    Args:
      graph: the graph.

    Attributes:
      switches: the Switches that decide on it.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._found: dict[str, Conditions] = {}
        self.switches: frozenset[str] = frozenset()
        if not graph.ops.isdisjoint(_SWITCHES):
            nodes = (node for node in graph.nodes.values() if node.op in _SWITCHES)
            self.switches = frozenset(
                node.name for node in nodes if not _ends_trips(graph, node)
            )
            for name in graph.order:
                conditions = self._of_node(graph.nodes[name])
                if conditions:
                    self._found[name] = conditions

    def of(self, edge: ir.Edge) -> Conditions:
        """The conditions under which there is a tensor at an edge."""
        own = self._found.get(edge[0], _NONE)
        if edge[0] not in self.switches:
            return own
        return own | {(self._graph.nodes[edge[0]].inputs[1], edge[1])}

    def shares(self) -> dict[str, float]:
        """Of the nodes in branches, in which part of the runs of a graph they run.

        In half of them for each condition, as of two branches one runs.
        """
        return {name: 0.5 ** len(found) for name, found in self._found.items()}

    def _of_node(self, node: ir.Node) -> Conditions:
        data = [self.of(edge) for edge in node.inputs if not self._is_back(edge)]
        if node.op in ("Merge", "RefMerge") and data:  # runs once any of them is there
            data = [frozenset.intersection(*data)]
        waits = [self._found.get(name, _NONE) for name in node.controls]
        return _NONE.union(*data, *waits)

    def _is_back(self, edge: ir.Edge) -> bool:
        node = self._graph.nodes.get(edge[0])
        return node is not None and node.op in ("NextIteration", "RefNextIteration")
