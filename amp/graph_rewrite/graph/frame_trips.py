"""Estimates how often nodes in loops of `tf.compat.v1` run, and finds their counters.

As `loop_trips` does for a `While`; here conditions and bodies are nodes in frames. No
choice of precision is made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.frames import Frame, LoopVariable, frames, loop_variables
from amp.graph_rewrite.graph.loop_trips import (
    Counter,
    bounds,
    least,
    number,
    source,
    step_of,
)


def frame_trips(graph: ir.Graph) -> dict[str, int]:
    """How often each node in a loop of `tf.compat.v1` runs in one run of the graph.

    A loop's condition is known as in `LoopTrips`, and so are numbers: the loop of a
    gradient counts down the trips of the loop itself.

    Returns:
      The runs by node; a node that is not in it runs once.
    """
    within = frames(graph)
    loops = _Frames(graph, within)
    runs = {frame: loops.runs(frame) for frame in set(within.values())}
    return {name: runs[frame] for name, frame in within.items()}


def counters(graph: ir.Graph) -> frozenset[str]:
    """The Switches of loop variables of `tf.compat.v1` that differ on every trip.

    Each is a number to which the loop adds the same constant, not 0, on every trip.
    """
    loops = _Frames(graph, {})
    return frozenset(
        name
        for variable in loop_variables(graph)
        if loops.step(variable)
        for name in variable.switches
    )


class _Frames:
    """The loops of `tf.compat.v1` in a graph, with the trips that are known so far."""

    def __init__(self, graph: ir.Graph, within: Mapping[str, Frame]) -> None:
        self._graph = graph
        self._conditions = {
            frame: graph.nodes[name].inputs[0]
            for name, frame in within.items()
            if graph.nodes[name].op == "LoopCond"
        }
        variables = loop_variables(graph)
        self._by_merge = {variable.merge: variable for variable in variables}
        self._by_exit = {name: v for v in variables for name in v.exits}
        self._trips: dict[Frame, int] = {}

    def runs(self, frame: Frame) -> int:
        """The trips of a loop, times those of the loops around it."""
        around = (frame[: depth + 1] for depth in range(len(frame)))
        return math.prod(map(self._of, around))

    def _of(self, frame: Frame) -> int:
        if frame not in self._trips:
            tests = self._tests(frame)
            self._trips[frame] = least(bounds(tests, self._counter))
        return self._trips[frame]

    def _tests(self, frame: Frame) -> Iterator[ir.Node]:
        """The nodes all of which have to hold for another trip."""
        pending = [self._conditions[frame]] if frame in self._conditions else []
        while pending:
            node = self._graph.nodes.get(source(self._graph, pending.pop())[0])
            if node is not None and node.op == "LogicalAnd":
                pending += node.inputs
            elif node is not None:
                yield node

    def _counter(self, edge: ir.Edge) -> Counter | None:
        edge = source(self._graph, edge)
        variable = self._by_merge.get(edge[0])
        if variable is None:
            value = self._value(edge)
            return None if value is None else Counter(value, 0.0)
        start, step = self._start(variable), self.step(variable)
        return None if start is None or step is None else Counter(start, step)

    def _start(self, variable: LoopVariable) -> float | None:
        return self._value(self._graph.nodes[variable.enter].inputs[0])

    def step(self, variable: LoopVariable) -> float | None:
        """What the loop adds to a variable on every trip, None if not known."""

        def is_variable(edge: ir.Edge) -> bool:
            return edge[0] in variable.switches

        back = self._graph.nodes[variable.back]
        edge = source(self._graph, back.inputs[0])
        if is_variable(edge):
            return 0.0
        return step_of(self._graph, edge, is_variable, self._value)

    def _value(self, edge: ir.Edge) -> float | None:
        """The number at an edge, None if it is not known."""
        return number(self._graph, edge, self._other)

    def _other(self, edge: ir.Edge) -> float | None:
        """What enters a loop unchanged, or a counter at the end of its own."""
        node = self._graph.nodes.get(edge[0])
        if node is not None and node.op == "Enter":
            return None if self._enters(node) else self._value(node.inputs[0])
        return self._last(self._by_exit[edge[0]]) if edge[0] in self._by_exit else None

    def _enters(self, node: ir.Node) -> bool:
        """Whether an Enter is a loop variable's initial value."""
        readers = self._graph.readers.get((node.name, 0), ())
        return any(name in self._by_merge for name, _ in readers)

    def _last(self, variable: LoopVariable) -> float | None:
        start, step = self._start(variable), self.step(variable)
        if start is None or step is None:
            return None
        return start + step * self._of(variable.frame)
