"""Linear recurrences: what a loop computes of itself by products, trip after trip.

Each trip multiplies the errors of all before by the same matrices, and nothing takes
them away as the activation of a recurrent network does: the covariance of a filter
loses its definiteness. No cost may enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from amp.graph_rewrite.candidates.call_values import Member, UseEdge
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.float_paths import FloatPaths
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Site
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.plan import Reason


def recurrences(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    sites: Mapping[Member, Site],
) -> dict[Member, Reason]:
    """Refuses products on a cycle of products, sums, moves and constant factors.

    Only where a trip has two of them, one after the other: A B A' of a rounded half is
    not symmetric.

    Args:
      graphs: every use's graph.
      typed: its nodes.
      sites: the calls, loops and branches of the module that are known.
    """
    ops = {op for graph in graphs.values() for op in graph.ops}
    frames = any(facts(op).kind is Kind.NEXT_ITERATION for op in ops)
    if not frames and not any(site.call.loop for site in sites.values()):
        return {}
    paths = FloatPaths(graphs, typed, sites)
    linear = [
        (use, name)
        for use, graph in graphs.items()
        for name in graph.order
        if (use, name) not in sites and paths.is_linear((use, name))
    ]
    cycle = _cycles(paths, linear)
    steps = [(paths.operands(node), paths.results(node), node) for node in linear]
    before = _behind_products(paths, steps, cycle)
    back = [(outs, ins, node) for ins, outs, node in reversed(steps)]
    after = _behind_products(paths, back, cycle)
    return {node: Reason("recurrence", node[1]) for node in before | after}


def _behind_products(
    paths: FloatPaths,
    steps: Iterable[tuple[list[UseEdge], list[UseEdge], Member]],
    cycle: Mapping[UseEdge, int],
) -> set[Member]:
    """The products that come behind another one of their cycle, in the same trip.

    Args:
      paths: of the module.
      steps: what nodes read and make, and the node, in the order of a trip; what they
        make and read, in the order against it.
      cycle: the edges of each cycle, with its number.
    """
    found: set[Member] = set()
    behind: set[UseEdge] = set()
    for come, go, node in steps:
        numbers = {cycle[at] for at in come if at in cycle}
        on = [at for at in go if cycle.get(at) in numbers]
        reached = not behind.isdisjoint(come)
        if on and reached and paths.is_product(node):
            found.add(node)
        if on and (reached or paths.is_product(node)):
            behind.update(on)
    return found


def _cycles(paths: FloatPaths, linear: list[Member]) -> dict[UseEdge, int]:
    """The edges that some nodes compute of themselves, with a number for each cycle."""
    numbers: dict[UseEdge, int] = {}
    steps = [(one, other) for one, others in paths.onward.items() for other in others]
    for node in linear:
        outs = paths.results(node)
        steps += [(one, other) for one in paths.operands(node) for other in outs]
    for step in steps:
        for at in step:
            numbers.setdefault(at, len(numbers))
    if not steps:
        return {}
    rows, columns = zip(*((numbers[a], numbers[b]) for a, b in steps), strict=True)
    shape = (len(numbers), len(numbers))
    matrix = csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=shape)
    _, labels = connected_components(matrix, directed=True, connection="strong")
    sizes = np.bincount(labels)
    return {at: int(labels[n]) for at, n in numbers.items() if sizes[labels[n]] > 1}
