"""Generators of random numbers that start from their seeds in each new function.

What is to draw the same, and what is not, is not decided here.
"""

from __future__ import annotations

import zlib
from collections.abc import Container

from amp.graph_rewrite.graph import ir, op_schema

_SEEDS = ("seed", "seed2")


def is_random(node: ir.Node) -> bool:
    """Whether a node is such a generator."""
    return all(node.has(attr) for attr in _SEEDS)


def repeating(node: ir.Node) -> ir.Node:
    """The node so that it draws the same numbers in every function made of it.

    A generator without seeds would begin with others, so it gets some, by its name.
    """
    if not is_random(node) or any(node.integer(attr, 0) for attr in _SEEDS):
        return node
    seed = zlib.crc32(node.name.encode()) >> 1
    return node.changed(updates={"seed": seed, "seed2": 1})


def drawing_apart(graph: ir.Graph, form: str, shared: Container[str] = ()) -> ir.Graph:
    """A graph whose generators draw other numbers than those of its other forms.

    Where several forms of a step run by turns, each begins at its seeds: two steps
    would draw the same. What has no seeds draws at random in any case.

    Args:
      graph: of one of the forms.
      form: a name for it; the same one draws the same.
      shared: the names of nodes that are one in all forms.
    """
    if not any(op_schema.attributes(op).issuperset(_SEEDS) for op in graph.ops):
        return graph
    nodes = {
        name: node if name in shared else _apart(node, form)
        for name, node in graph.nodes.items()
    }
    return graph.with_nodes(nodes)


def _apart(node: ir.Node, form: str) -> ir.Node:
    seeds = [node.integer(attr, 0) for attr in _SEEDS]
    if not is_random(node) or not any(seeds):
        return node
    seed = zlib.crc32(f"{form} {seeds[-1]}".encode()) >> 1
    return node.changed(updates={_SEEDS[-1]: seed or 1})
