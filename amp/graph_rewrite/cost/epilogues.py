"""Finds epilogues: nodes that Grappler merges into the kernel of a node before them.

A merged node takes no time of its own, and a cast in the chain prevents the merging of
all that follows. The chains are in `ops.chains`; no price and no choice may enter.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from amp.graph_rewrite.candidates.context import Context
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.shapes import elements
from amp.graph_rewrite.ops.chains import CHAINS, FILLS, Chain, First, Other, Step


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """A node that takes no time if it is merged.

    Attributes:
      name: the node.
      partners: the other nodes of its chain without which it is not merged. It is
        merged if all of them have its type.
      types: whether it can be merged in (float32, 16 bits).
    """

    name: str
    partners: tuple[str, ...]
    types: tuple[bool, bool]


def epilogues(graph: ir.Graph, context: Context) -> Iterator[Merged]:
    """The nodes that are merged into a node before them.

    Each node of a chain is the only reader of the one before, and no node waits for it.
    There are none under XLA, which fuses by its own rules, nor under emulation.

    Args:
      graph: one function's.
      context: of the use.
    """
    if context.xla or context.policy.emulate:
        return
    walk = _Walk(graph, context)
    chains: dict[str, list[Chain]] = defaultdict(list)  # by the op of the first node
    for chain in CHAINS:
        for op in chain.first if chain.device == context.device_type else ():
            chains[op].append(chain)
    taken: set[str] = set()
    for name in graph.order:
        op = graph.nodes[name].op
        if op not in chains:
            continue
        found = [
            (chain, names) for chain in chains[op] if (names := walk.match(chain, name))
        ]
        if not found or name in taken:
            continue
        chain, names = max(found, key=lambda one: len(one[1]))
        if not chain.merged or not taken.isdisjoint(names):
            continue
        taken.update(names)
        yield from _merged(chain, names, context)


def _merged(chain: Chain, names: tuple[str, ...], context: Context) -> Iterator[Merged]:
    types = ("float32" in chain.dtypes, context.format.name in chain.dtypes)
    for index, name in enumerate(names[1:], 1):
        after = names[index + 1 :] if chain.whole else ()
        yield Merged(name, (*names[:index], *after), types)


class _Walk:
    """Follows chains along a graph."""

    def __init__(self, graph: ir.Graph, context: Context) -> None:
        self._graph = graph
        waited = {name for node in graph.nodes.values() for name in node.controls}
        returned = {result.edge[0] for result in graph.results}
        self._waited = waited | set(graph.control_results) | context.fetched
        self._read = returned | self._waited  # also by others than nodes

    def match(self, chain: Chain, first: str) -> tuple[str, ...]:
        """The nodes of a chain from its first node on, empty if it does not match."""
        if not self._begins(chain.condition, self._graph.nodes[first]):
            return ()
        names = [first]
        for step in chain.steps:
            reader = self._reader(names[-1])
            if reader is None or not self._fits(step, names, *reader):
                return ()
            names.append(reader[0].name)
        controls = any(self._graph.nodes[name].controls for name in names)
        return () if controls or names[-1] in self._waited else tuple(names)

    def _reader(self, name: str) -> tuple[ir.Node, int] | None:
        """The only reader of a node's first output, and the number of its input."""
        readers = self._graph.readers.get((name, 0), ())
        if name in self._read or len(readers) != 1:
            return None
        ((reader, index),) = readers
        return self._graph.nodes[reader], index

    def _fits(self, step: Step, names: list[str], node: ir.Node, index: int) -> bool:
        if node.op not in step.ops or (index and not step.either):
            return False
        if step.other is Other.ANY:
            return True
        first = self._graph.nodes[names[0]]
        edge = node.inputs[1 - index]
        if step.other is Other.ITSELF:
            return edge == first.inputs[0]
        given, shape = self._graph.shape((names[-1], 0)), self._graph.shape(edge)
        if given is None or shape is None:
            return False
        if step.other is Other.SAME:
            return shape == given
        if step.other is Other.MASK:
            return len(shape) == 4 and shape[1] == 1
        if step.other is Other.VECTOR:
            return shape == given[-1:]
        if step.other is Other.NUMBER:
            return -1 not in shape and elements(shape) == 1
        return self._is_bias(first, given, shape)

    def _is_bias(
        self, first: ir.Node, given: tuple[int, ...], shape: tuple[int, ...]
    ) -> bool:
        layout = first.text("data_format")
        if not shape or shape[-1] != given[-1] or layout.startswith("NC"):
            return False
        return len(shape) <= len(given) and set(shape[:-1]) <= {1}

    def _begins(self, condition: First, node: ir.Node) -> bool:
        if condition is First.WINDOW:
            window = self._graph.shape(node.inputs[1])
            return window is not None and min(window[:2]) > 1
        if condition is First.ROWS:
            scale = self._graph.nodes.get(node.inputs[1][0])
            rows = self._graph.shape(node.inputs[1])  # those known are folded away
            return scale is not None and scale.op in FILLS and rows == (-1,)
        return True
