"""How often a loop runs, as far as its condition and its counters tell.

An estimate that weighs costs, read from constants; no choice of precision is made here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from amp.graph_rewrite.graph import ir, shapes

# A limit beyond this stands for "no limit" (`np.inf`, `sys.maxsize`): at a microsecond
# a trip, the least that TensorFlow takes, one call would run for 17 minutes.
MOST_TRIPS = 10**9

# Comparisons: which input is the lower one while the loop goes on, and whether it may
# equal the other.
_COMPARISONS = {
    "Less": (0, False),
    "LessEqual": (0, True),
    "Greater": (1, False),
    "GreaterEqual": (1, True),
}
_STEPS = {"Add": 1.0, "AddV2": 1.0, "Sub": -1.0}


@dataclasses.dataclass(frozen=True, slots=True)
class _Counter:
    """A number that starts at `start` and grows by `step` on every trip."""

    start: float
    step: float


def trips(module: ir.Module, caller: ir.Graph, node: ir.Node) -> int:
    """How often the loop `node` of the graph `caller` runs.

    A comparison in the condition tells if both of its sides begin at a constant and the
    body adds a constant to each (0 to what stays as it is), so that one side meets the
    other. `tf.while_loop` makes such a comparison for `maximum_iterations`, and most
    users write one. Of several, the one that ends the loop first counts.

    Returns:
      The number of trips; `shapes.UNKNOWN_TRIPS` where no comparison tells, or the
      number is more than `MOST_TRIPS`.
    """
    cond, body = (
        module.functions.get(name)
        for attr in ("cond", "body")
        for name in node.functions(attr)[:1]
    )
    if cond is None or body is None:
        return shapes.UNKNOWN_TRIPS
    loop = _Loop(caller, node, cond, body)
    return math.ceil(min(loop.bounds(), default=shapes.UNKNOWN_TRIPS))


@dataclasses.dataclass(frozen=True, slots=True)
class _Loop:
    caller: ir.Graph
    node: ir.Node
    cond: ir.Graph
    body: ir.Graph

    def bounds(self) -> Iterator[float]:
        """The trips after which each comparison that tells ends the loop."""
        for test in self.cond.nodes.values():
            if test.op not in _COMPARISONS:
                continue
            first, may_equal = _COMPARISONS[test.op]
            lower = self.counter(test.inputs[first])
            upper = self.counter(test.inputs[1 - first])
            if lower is None or upper is None:
                continue
            found = _trips(lower, upper, may_equal)
            if 0 < found <= MOST_TRIPS:
                yield found

    def counter(self, edge: ir.Edge) -> _Counter | None:
        """What a tensor of the condition is over the trips."""
        edge = _source(self.cond, edge)
        index = _index(self.cond, edge)
        if index is None:
            constant = _constant(self.cond, edge)
            return None if constant is None else _Counter(constant, 0.0)
        start, step = self.start(index), self.step(index)
        return None if start is None or step is None else _Counter(start, step)

    def start(self, index: int) -> float | None:
        """The constant that a loop variable begins at."""
        if index >= len(self.node.inputs):
            return None
        return _constant(self.caller, self.node.inputs[index])

    def step(self, index: int) -> float | None:
        """The constant that the body adds to a loop variable."""
        if index >= len(self.body.results):
            return None
        edge = _source(self.body, self.body.results[index].edge)
        if _index(self.body, edge) == index:
            return 0.0
        node = self.body.nodes.get(edge[0])
        if node is None or node.op not in _STEPS:
            return None
        sides = [_source(self.body, side) for side in node.inputs]
        if _index(self.body, sides[0]) != index:
            sides.reverse()
            if node.op == "Sub" or _index(self.body, sides[0]) != index:
                return None
        added = _constant(self.body, sides[1])
        return None if added is None else _STEPS[node.op] * added


def _trips(lower: _Counter, upper: _Counter, may_equal: bool) -> float:
    """How often `lower < upper` (or `<=`) holds before it fails; 0 if not known."""
    gap, closed = upper.start - lower.start, lower.step - upper.step
    if not (math.isfinite(gap) and math.isfinite(closed) and gap >= 0 and closed > 0):
        return 0.0
    found = gap / closed
    if found > MOST_TRIPS:
        return math.inf
    return math.floor(found) + 1 if may_equal else math.ceil(found)


def _source(graph: ir.Graph, edge: ir.Edge) -> ir.Edge:
    """The tensor that an edge holds, behind nodes that only hand it on."""
    node = graph.nodes.get(edge[0])
    while node is not None and node.op == "Identity":
        edge = node.inputs[0]
        node = graph.nodes.get(edge[0])
    return edge


def _index(graph: ir.Graph, edge: ir.Edge) -> int | None:
    """Which argument of a function an edge is, None if it is none."""
    names = [arg.name for arg in graph.args]
    return names.index(edge[0]) if edge[0] in names else None


def _constant(graph: ir.Graph, edge: ir.Edge) -> float | None:
    """The number that a tensor is whenever the graph runs, None if it is not known."""
    node = graph.nodes.get(_source(graph, edge)[0])
    if node is None or node.op != "Const":
        return None
    values = node.tensor()
    if values is None or values.shape != () or values.dtype.kind not in "iuf":
        return None
    return float(values)
