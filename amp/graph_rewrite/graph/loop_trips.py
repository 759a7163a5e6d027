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


def trips(module: ir.Module, caller: ir.Graph, node: ir.Node) -> int:
    """The number of trips of the loop `node` in the graph `caller`.

    It is known from a comparison in the loop's condition if both sides start at a
    constant and the body adds a constant to each on every trip (0 to a side that does
    not change), so that the smaller side reaches the other. `tf.while_loop` adds such a
    comparison for `maximum_iterations`, and most users write one. If there are several,
    the smallest number counts.

    Returns:
      The number of trips; `shapes.UNKNOWN_TRIPS` where it is not known or is larger
      than `MOST_TRIPS`.
    """
    cond, body = (
        module.functions.get(name)
        for attr in ("cond", "body")
        for name in node.functions(attr)[:1]
    )
    if cond is None or body is None:
        return shapes.UNKNOWN_TRIPS
    loop = _Loop(caller, node, cond, body)
    return least(bounds(cond.nodes.values(), loop.counter))


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
        """The constant that loop variable `index` starts with, None if not known."""
        if index >= len(self.node.inputs):
            return None
        return constant(self.caller, self.node.inputs[index])

    def step(self, index: int) -> float | None:
        """The constant that the body adds to loop variable `index`; None if unknown."""
        if index >= len(self.body.results):
            return None
        edge = source(self.body, self.body.results[index].edge)
        if _index(self.body, edge) == index:
            return 0.0
        return step_of(
            self.body,
            edge,
            lambda side: _index(self.body, side) == index,
            lambda side: constant(self.body, side),
        )


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


def constant(graph: ir.Graph, edge: ir.Edge) -> float | None:
    """The value of a scalar numeric constant (behind Identities), else None."""
    node = graph.nodes.get(source(graph, edge)[0])
    if node is None or node.op != "Const":
        return None
    values = node.tensor()
    if values is None or values.shape != () or values.dtype.kind not in "iuf":
        return None
    return float(values)
