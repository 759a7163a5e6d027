"""Python that runs amid a graph, which may write any variable and takes no handle.

Says where; no read is moved or merged here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.ops import structure


def running(module: ir.Module) -> frozenset[str]:
    """The functions of a module that run Python, by themselves or by a call."""
    return reaching(
        module,
        (
            name
            for name, graph in module.functions.items()
            if not graph.ops.isdisjoint(structure.PYTHON)
        ),
    )


def reaching(module: ir.Module, functions: Iterable[str]) -> frozenset[str]:
    """These functions of a module, and those that call them, directly or not."""
    found = set(functions)
    if not found:
        return frozenset()
    callers: dict[str, list[str]] = {}
    for name, graph in module.functions.items():
        for node in graph.nodes.values():
            for callee in _callees(node, module.functions):
                callers.setdefault(callee, []).append(name)
    pending = list(found)
    while pending:
        fresh = set(callers.get(pending.pop(), ())) - found
        found |= fresh
        pending += fresh
    return frozenset(found)


def nodes(graph: ir.Graph, functions: frozenset[str]) -> list[str]:
    """The nodes that run Python.

    Args:
      graph: one function.
      functions: those that do (`running`).
    """
    if not functions and graph.ops.isdisjoint(structure.PYTHON):
        return []
    called = set(calling(graph, functions))
    return [
        name
        for name, node in graph.nodes.items()
        if node.op in structure.PYTHON or name in called
    ]


def calling(graph: ir.Graph, functions: frozenset[str]) -> Iterator[str]:
    """The nodes that call one of these functions."""
    for name, node in graph.nodes.items():
        if not functions.isdisjoint(_callees(node, functions)):
            yield name


def _callees(node: ir.Node, functions: Container[str]) -> tuple[str, ...]:
    call = calls.call_of(node, functions)
    return () if call is None else calls.callees_of(node, call)


def around(
    graph: ir.Graph, python: Iterable[str], asked: Iterable[str]
) -> Mapping[str, tuple[int, int]]:
    """Of each node that is asked for, what Python runs before and after it.

    As sets, a bit for each of `python`: reads with equal ones give the same value as
    far as Python goes. What is ordered by nothing is in neither.

    Args:
      graph: one function.
      python: its nodes that run Python.
      asked: nodes.
    """
    own = {name: 1 << place for place, name in enumerate(python)}
    if not own:
        return dict.fromkeys(asked, (0, 0))
    before: dict[str, int] = {}
    after = dict.fromkeys(graph.order, 0)
    for name in graph.order:
        bits = 0
        for source in graph.nodes[name].sources:
            bits |= before.get(source, 0) | own.get(source, 0)
        before[name] = bits
    for name in reversed(graph.order):
        bits = after[name] | own.get(name, 0)
        for source in graph.nodes[name].sources:
            if source in after:
                after[source] |= bits
    return {name: (before.get(name, 0), after.get(name, 0)) for name in asked}
