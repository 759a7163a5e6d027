"""Recurrences: what a loop, or a variable, is computed of itself by products.

Each trip multiplies the errors of all before by the same matrices, and nothing takes
them away as the activation of a recurrent network does: the covariance of a filter
loses its definiteness, and the iterations of a solver end where rounding is. No cost
may enter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from amp.graph_rewrite.candidates.float_paths import FloatPaths
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Reason


def recurrences(paths: FloatPaths) -> dict[Member, Reason]:
    """Refuses products on a cycle over the trips of a loop.

    Where a gradient is taken, only where a trip has two of them, one after the other,
    with products, sums, moves and constant factors between: A B A' of a rounded half is
    not symmetric. Where none is, nothing is trained that bears rounding, and nothing is
    compared: there one is enough, if the loop also adds to what it had, as iterations
    of solvers do, or if the cycle is over a variable, from call to call. That may have
    quotients, roots and products of elements between, too.
    """
    loops = any(site.call.loop for site in paths.sites.values())
    loops |= paths.has(Kind.NEXT_ITERATION)
    if not loops and (paths.trained or not paths.has(Kind.WRITE)):
        return {}
    linear = [node for node in _nodes(paths) if paths.is_linear(node)]
    cycle = _cycles(paths, linear)
    found = _of_several(paths, linear, cycle) if loops else set()
    found |= set() if paths.trained else _of_one(paths, linear, cycle)
    return {node: Reason("recurrence", node[1]) for node in found}


def _of_one(
    paths: FloatPaths, linear: Iterable[Member], cycle: Mapping[UseEdge, int]
) -> set[Member]:
    """Products on cycles of a function that takes no gradient.

    Args:
      paths: of the module.
      linear: its nodes that are linear in each operand.
      cycle: the edges that they compute of themselves, by cycle.
    """
    adding = _cycles(paths, [node for node in linear if not paths.is_product(node)])
    found = _on(paths, cycle, adding)
    if kept := list(_kept(paths)):
        arithmetic = [*linear, *filter(paths.is_arithmetic, _nodes(paths))]
        cycle = _cycles(paths, arithmetic, kept)
        found |= _on(paths, cycle, itertools.chain(*kept))
    return found


def _on(
    paths: FloatPaths, cycle: Mapping[UseEdge, int], meant: Iterable[UseEdge]
) -> set[Member]:
    """The products on those cycles that some edges are on."""
    numbers = {cycle[at] for at in meant if at in cycle}
    found = set()
    for node in filter(paths.is_product, _nodes(paths) if numbers else ()):
        read = {cycle[at] for at in paths.operands(node) if at in cycle}
        made = {cycle[at] for at in paths.results(node) if at in cycle}
        if not numbers.isdisjoint(read & made):
            found.add(node)
    return found


def _kept(paths: FloatPaths) -> Iterator[tuple[UseEdge, UseEdge]]:
    """From what is written to a variable to what is read of it, in one function."""
    for use, graph in paths.graphs.items():
        reads: dict[ir.Edge, list[Member]] = {}
        for name, view in paths.typed[use].items():
            if view.facts.only_reads and name in graph.nodes:
                reads.setdefault(view.node.inputs[0], []).append((use, name))
        for name, view in paths.typed[use].items():
            if view.facts.kind is Kind.WRITE and view.node.inputs[:1]:
                for reader in reads.get(view.node.inputs[0], ()):
                    for value in paths.operands((use, name)):
                        yield from ((value, at) for at in paths.results(reader))


def _nodes(paths: FloatPaths) -> Iterator[Member]:
    """The nodes of all graphs but calls, each after what it reads."""
    for use, graph in paths.graphs.items():
        yield from ((use, n) for n in graph.order if (use, n) not in paths.sites)


def _of_several(
    paths: FloatPaths, linear: Iterable[Member], cycle: Mapping[UseEdge, int]
) -> set[Member]:
    """Products that come one after the other in each trip of a loop.

    Args: as of `_of_one`.
    """
    steps: list[_Step] = [
        _Step(one, other, node)
        for node in linear
        if paths.view(node).facts.kind is not Kind.NEXT_ITERATION
        for one in paths.operands(node)
        for other in paths.results(node)
    ]
    again = {
        each: site.callees for site in paths.sites.values() for each in site.callees
    }
    steps += [
        _Step(one, other, None)
        for one, others in paths.handovers.onward.items()
        for other in others
        if other[0] not in again.get(one[0], ())
    ]
    on = [s for s in steps if s.one in cycle and cycle[s.one] == cycle.get(s.other)]
    return _behind_products(paths, on) | _behind_products(
        paths, [_Step(other, one, node) for one, other, node in on]
    )


class _Step(NamedTuple):
    """A step of a cycle, inside of one trip.

    Attributes:
      one, other: from which edge to which.
      node: the node that reads one and makes the other; None from function to function.
    """

    one: UseEdge
    other: UseEdge
    node: Member | None


def _behind_products(paths: FloatPaths, steps: Iterable[_Step]) -> set[Member]:
    """The products that some steps lead to from another product."""
    onward: dict[UseEdge, list[_Step]] = {}
    for step in steps:
        onward.setdefault(step.one, []).append(step)
    products = {
        s.node for s in steps if s.node is not None and paths.is_product(s.node)
    }
    pending = [step.other for step in steps if step.node in products]
    found: set[Member] = set()
    seen: set[UseEdge] = set()
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            following = onward.get(at, ())
            pending += [step.other for step in following]
            found |= products.intersection(step.node for step in following)
    return found


def _cycles(
    paths: FloatPaths,
    nodes: Iterable[Member],
    more: Iterable[tuple[UseEdge, UseEdge]] = (),
) -> dict[UseEdge, int]:
    """The edges that some nodes compute of themselves, with a number for each cycle.

    Args:
      paths: of the module.
      nodes: the nodes.
      more: further steps, beside those of nodes and from function to function.
    """
    numbers: dict[UseEdge, int] = {}
    steps = [
        (one, other)
        for one, others in paths.handovers.onward.items()
        for other in others
    ]
    steps += more
    for node in nodes:
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
