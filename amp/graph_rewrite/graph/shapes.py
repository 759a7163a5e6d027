"""Sizes of tensors: how many elements a static shape has, and what is unknown of it.

No types and no costs may enter.
"""

from __future__ import annotations

import math

from amp.graph_rewrite.graph import ir

# What an unknown dimension, and a tensor of unknown rank, count as. Only relative costs
# depend on them: a batch of 32 is the common default of Keras' fit.
UNKNOWN_DIMENSION = 32
UNKNOWN_ELEMENTS = 1024
# Trips that a loop of unknown length counts as.
UNKNOWN_TRIPS = 10


def elements(shape: ir.Shape) -> int:
    """Number of elements, with the stated defaults for what is unknown."""
    if shape is None:
        return UNKNOWN_ELEMENTS
    return math.prod(size if size >= 0 else UNKNOWN_DIMENSION for size in shape)


def known_sizes(shape: ir.Shape) -> tuple[int, ...] | None:
    """A shape with the size that the cost model takes for an unknown dimension."""
    if shape is None:
        return None
    return tuple(size if size >= 0 else UNKNOWN_DIMENSION for size in shape)
