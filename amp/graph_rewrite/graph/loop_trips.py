"""Estimates how many trips a `While` loop makes, from its condition and its counters.

The estimate only weighs costs; no choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

from amp.graph_rewrite.graph import ir, shapes

# A larger limit means "no limit" (`np.inf`, `sys.maxsize`): at one microsecond a trip,
# the least that TensorFlow takes, 10**9 trips would run for 17 minutes.
MOST_TRIPS = 10**9

# Comparisons that keep a loop running: which input is the smaller one while the
# comparison holds, and whether the two may be equal.
_COMPARISONS = {
    "Less": (0, False),
    "LessEqual": (0, True),
    "Greater": (1, False),
    "GreaterEqual": (1, True),
}
_STEPS = {"Add": 1.0, "AddV2": 1.0, "Sub": -1.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Counter:
    """A scalar loop variable that starts at `start` and grows by `step` each trip."""

    start: float
    step: float


class LoopTrips:
    """The trips of a module's loops, each estimated once.

    A loop's trips are known from a comparison in its condition if both sides start at a
    known number and the body adds the same to each on every trip (0 to a side that
    does not change), so that the smaller side reaches the other. `tf.while_loop` adds
    such a comparison for `maximum_iterations`, and most users write one. If there are
    several, the smallest number counts. The loop of a gradient counts up to what the
    loop itself counted: numbers are known as in `number`, or as a counter at the end of
    another loop.
    """

    def __init__(self, module: ir.Module) -> None:
        self._functions = module.functions
        self._known: dict[tuple[str, str], int] = {}  # by graph and node

    def of(self, caller: ir.Graph, node: ir.Node) -> int:
        """The number of trips of the loop `node` in the graph `caller`.

        Returns:
          The number of trips; `shapes.UNKNOWN_TRIPS` where it is not known or is larger
          than `MOST_TRIPS`.
        """
        key = (caller.name, node.name)
        if key not in self._known:
            loop = self._loop(caller, node)
            tests = () if loop is None else loop.cond.nodes.values()
            counter = (lambda _: None) if loop is None else loop.counter
            self._known[key] = least(bounds(tests, counter))
        return self._known[key]

    def _loop(self, caller: ir.Graph, node: ir.Node) -> _Loop | None:
        """A node's loop, None if it is none whose functions are known."""
        cond, body = (
            self._functions.get(name)
            for attr in ("cond", "body")
            for name in node.functions(attr)[:1] or [""]
        )
        if cond is None or body is None:
            return None
        return _Loop(caller, node, cond, body, self._last)

    def _last(self, caller: ir.Graph, edge: ir.Edge) -> float | None:
        """What a counter is at the end of its loop, None for an edge of no such."""
        node = caller.nodes.get(edge[0])
        loop = None if node is None else self._loop(caller, node)
        if loop is None:
            return None
        start, step = loop.start(edge[1]), loop.step(edge[1])
        if start is None or step is None:
            return None
        return start + step * self.of(caller, loop.node)


def least(bounds: Iterable[float]) -> int:
    return math.ceil(min(bounds, default=shapes.UNKNOWN_TRIPS))


def bounds(
    tests: Iterable[ir.Node], counter: Callable[[ir.Edge], Counter | None]
) -> Iterator[float]:
    """For each comparison of two counters, the trips after which it fails."""
    for test in tests:
        if test.op not in _COMPARISONS:
            continue
        first, may_equal = _COMPARISONS[test.op]
        lower, upper = counter(test.inputs[first]), counter(test.inputs[1 - first])
        if lower is None or upper is None:
            continue
        found = _trips(lower, upper, may_equal)
        if 0 < found <= MOST_TRIPS:
            yield found


@dataclasses.dataclass(frozen=True, slots=True)
class _Loop:
    """A loop node with the graph that holds it and its two functions."""

    caller: ir.Graph
    node: ir.Node
    cond: ir.Graph
    body: ir.Graph
    last: Callable[[ir.Graph, ir.Edge], float | None]  # the number that another gives

    def counter(self, edge: ir.Edge) -> Counter | None:
        """The counter behind an edge of the condition; None if it is no counter."""
        edge = source(self.cond, edge)
        index = _index(self.cond, edge)
        if index is None:
            value = constant(self.cond, edge)
            return None if value is None else Counter(value, 0.0)
        start, step = self.start(index), self.step(index)
        return None if start is None or step is None else Counter(start, step)

    def start(self, index: int) -> float | None:
        """The number that loop variable `index` starts with, None if not known."""
        if index >= len(self.node.inputs):
            return None
        given = self.node.inputs[index]
        return number(self.caller, given, lambda edge: self.last(self.caller, edge))

    def step(self, index: int) -> float | None:
        """What the body adds to loop variable `index` on a trip; None if unknown."""
        if index >= len(self.body.results):
            return None
        if self._stays(index):
            return 0.0
        return step_of(
            self.body,
            source(self.body, self.body.results[index].edge),
            lambda side: _index(self.body, side) == index,
            self._same,
        )

    def _stays(self, index: int) -> bool:
        """Whether the body hands a loop variable on as it is."""
        edge = source(self.body, self.body.results[index].edge)
        return _index(self.body, edge) == index

    def _same(self, edge: ir.Edge) -> float | None:
        """The number at an edge of the body if it is the same on every trip."""
        index = _index(self.body, edge)
        if index is None:
            return constant(self.body, edge)
        return self.start(index) if self._stays(index) else None


def step_of(
    graph: ir.Graph,
    edge: ir.Edge,
    is_variable: Callable[[ir.Edge], bool],
    value: Callable[[ir.Edge], float | None],
) -> float | None:
    """What the value at an edge adds to a variable, None if it is no such sum."""
    node = graph.nodes.get(edge[0])
    if node is None or node.op not in _STEPS:
        return None
    sides = [source(graph, side) for side in node.inputs]
    if not is_variable(sides[0]):
        sides.reverse()
        if node.op == "Sub" or not is_variable(sides[0]):
            return None
    added = value(sides[1])
    return None if added is None else _STEPS[node.op] * added


def _trips(lower: Counter, upper: Counter, may_equal: bool) -> float:
    """How often `lower < upper` (or `<=`) holds before it fails; 0 if not known."""
    gap, closed = upper.start - lower.start, lower.step - upper.step
    if not (math.isfinite(gap) and math.isfinite(closed) and gap >= 0 and closed > 0):
        return 0.0
    found = gap / closed
    if found > MOST_TRIPS:
        return math.inf
    return math.floor(found) + 1 if may_equal else math.ceil(found)


def source(graph: ir.Graph, edge: ir.Edge) -> ir.Edge:
    """The edge behind any chain of Identity nodes."""
    node = graph.nodes.get(edge[0])
    while node is not None and node.op == "Identity":
        edge = node.inputs[0]
        node = graph.nodes.get(edge[0])
    return edge


def _index(graph: ir.Graph, edge: ir.Edge) -> int | None:
    """The number of the function argument that an edge is, None for other edges."""
    names = [arg.name for arg in graph.args]
    return names.index(edge[0]) if edge[0] in names else None


def number(
    graph: ir.Graph, edge: ir.Edge, other: Callable[[ir.Edge], float | None]
) -> float | None:
    """The number at an edge, None if it is not known.

    A constant, part of a shape, or the smaller of two.

    Args:
      graph: has the edge.
      edge: of one number.
      other: tells the number at an edge that is none of these.
    """
    edge = source(graph, edge)
    node = graph.nodes.get(edge[0])
    op = "" if node is None else node.op
    if node is not None and op == "Minimum":
        sides = [number(graph, side, other) for side in node.inputs]
        return min((side for side in sides if side is not None), default=None)
    if node is not None and op == "StridedSlice":
        return _element(graph, node)
    return constant(graph, edge) if op == "Const" else other(edge)


def _element(graph: ir.Graph, node: ir.Node) -> float | None:
    """The element that a StridedSlice takes out of a known shape, else None."""
    taken, begin, *_ = node.inputs
    at = graph.nodes[begin[0]].tensor() if begin[0] in graph.nodes else None
    made = graph.nodes.get(taken[0])
    if made is None or at is None or at.size != 1 or graph.shape((node.name, 0)) != ():
        return None
    known = graph.size(made.inputs[0]) if made.op == "Shape" else made.tensor()
    index = int(at.reshape(()))
    if known is None or not -len(known) <= index < len(known) or known[index] < 0:
        return None
    return float(known[index])


def constant(graph: ir.Graph, edge: ir.Edge) -> float | None:
    """The value of a scalar numeric constant (behind Identities), else None."""
    node = graph.nodes.get(source(graph, edge)[0])
    if node is None or node.op != "Const":
        return None
    values = node.tensor()
    if values is None or values.shape != () or values.dtype.kind not in "iuf":
        return None
    return float(values)
