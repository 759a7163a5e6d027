"""Generators of random numbers that start from their seeds in each new function.

No graph is walked here.
"""

from __future__ import annotations

import zlib

from amp.graph_rewrite.graph import ir

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
