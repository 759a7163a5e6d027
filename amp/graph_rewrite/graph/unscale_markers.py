"""Which nodes are downstream of an unscale marker, and which one is computed from.

The marker is the attribute `ir.UNSCALE`, on the nodes that unscale gradients. No choice
of precision is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.handovers import handed_on

# The name of a function, and an edge there.
_Place: TypeAlias = tuple[str, ir.Edge]


def behind_markers(
    module: ir.Module, ends: Mapping[str, frozenset[str]] | None = None
) -> dict[str, frozenset[str]]:
    """For each function, the nodes that are an unscale marker or downstream of one.

    This includes other functions: a gradient unscaled in one function and applied in
    another is float32 in both.

    Args:
      module: the module.
      ends: for each function, nodes that are not counted, and hand nothing on.
    """
    return downstream(module, lambda node: node.flag(ir.UNSCALE), ends)


def before_markers(module: ir.Module) -> dict[str, frozenset[str]]:
    """For each function, the nodes that an unscale marker is computed from, and it.

    In other functions too, and in earlier trips of a loop.
    """
    walk = _Walk(module)
    return walk.upstream(walk.picked(lambda node: node.flag(ir.UNSCALE)))


def downstream(
    module: ir.Module,
    starts: Callable[[ir.Node], bool],
    ends: Mapping[str, frozenset[str]] | None = None,
) -> dict[str, frozenset[str]]:
    """For each function, the nodes that a predicate picks, and all downstream of them.

    As `behind_markers`, in other functions too.

    Args:
      module: the module.
      starts: the predicate.
      ends: for each function, nodes that are not picked, and hand nothing on.
    """
    walk = _Walk(module, {} if ends is None else ends)
    return walk.downstream(walk.picked(starts))


class _Walk:
    """Walks a module's edges, into functions and over the trips of loops.

    Args:
      module: the module.
      ends: for each function, nodes that are not looked at.
    """

    def __init__(
        self, module: ir.Module, ends: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self._functions = module.functions
        self._graphs = {graph.name: graph for graph in module.graphs()}
        self._graphs[module.main.name] = module.main
        self._ends = ends or {}

    def picked(self, pick: Callable[[ir.Node], bool]) -> dict[str, set[str]]:
        """The nodes of each function that a predicate picks."""
        return {
            name: {
                node.name
                for node in graph.nodes.values()
                if pick(node) and node.name not in self._ends.get(name, ())
            }
            for name, graph in self._graphs.items()
        }

    def downstream(self, found: dict[str, set[str]]) -> dict[str, frozenset[str]]:
        """Some nodes of each function, and all that are computed from them."""
        onward = self._links(found, back=False)
        made = {name: _made(graph) for name, graph in self._graphs.items()}
        pending = [
            (name, edge)
            for name, nodes in found.items()
            for node in nodes
            for edge in made[name].get(node, ())
        ]
        for name, edge in _each(pending, onward):
            for node, _ in self._graphs[name].readers.get(edge, ()):
                if node in found[name] or node in self._ends.get(name, ()):
                    continue
                found[name].add(node)
                if not self._callees(self._graphs[name].nodes[node]):
                    pending += [(name, each) for each in made[name].get(node, ())]
        return _frozen(found)

    def upstream(self, found: dict[str, set[str]]) -> dict[str, frozenset[str]]:
        """Some nodes of each function, and all that they are computed from."""
        back, callers = self._links(found, back=True), self._callers()
        pending = [
            (name, edge)
            for name, nodes in found.items()
            for node in nodes
            for edge in self._graphs[name].nodes[node].inputs
        ]
        for name, (source, _) in _each(pending, back):
            node = self._graphs[name].nodes.get(source)
            if node is None:  # an argument
                for caller, each in callers.get(name, ()):
                    found[caller].add(each)
                continue
            if source in found[name]:
                continue
            found[name].add(source)
            if not self._callees(node):
                pending += [(name, edge) for edge in node.inputs]
        return _frozen(found)

    def _links(
        self, found: Mapping[str, set[str]], *, back: bool
    ) -> Mapping[_Place, list[_Place]]:
        """The edges of other functions that hold what an edge does.

        Args:
          found: nodes of each function; if there are none, no links are needed.
          back: whether they are to lead from the edge that is read to those that give.
        """
        links: dict[_Place, list[_Place]] = {}
        if any(found.values()):
            for before, after in self._handed_on():
                one, other = (after, before) if back else (before, after)
                links.setdefault(one, []).append(other)
        return links

    def _handed_on(self) -> Iterator[tuple[_Place, _Place]]:
        for name, graph in self._graphs.items():
            for node in graph.nodes.values():
                call = calls.call_of(node, self._functions)
                if call is None or node.name in self._ends.get(name, ()):
                    continue
                yield from handed_on(name, node, call, self._callees(node))

    def _callers(self) -> dict[str, list[tuple[str, str]]]:
        """By the name of a function, the functions that call it, and their nodes."""
        callers: dict[str, list[tuple[str, str]]] = {}
        for name, graph in self._graphs.items():
            for node in graph.nodes.values():
                for callee in self._callees(node):
                    callers.setdefault(callee, []).append((name, node.name))
        return callers

    def _callees(self, node: ir.Node) -> dict[str, ir.Graph]:
        """The functions that a node calls, as far as they are known."""
        call = calls.call_of(node, self._functions)
        names = () if call is None else calls.callees_of(node, call)
        return {name: self._graphs[name] for name in names if name in self._graphs}


def _made(graph: ir.Graph) -> dict[str, set[ir.Edge]]:
    """By its node, the edges of a function that are read or returned."""
    made: dict[str, set[ir.Edge]] = {}
    for edge in (*graph.readers, *(result.edge for result in graph.results)):
        made.setdefault(edge[0], set()).add(edge)
    return made


def _each(
    pending: list[_Place], links: Mapping[_Place, Iterable[_Place]]
) -> Iterator[_Place]:
    """Takes places from a list, each once, with those that links lead to."""
    seen: set[_Place] = set()
    while pending:
        place = pending.pop()
        if place not in seen:
            seen.add(place)
            pending += links.get(place, ())
            yield place


def _frozen(found: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(nodes) for name, nodes in found.items()}
