"""Numbers of elements of static shapes, with defaults for unknown dimensions.

No types and no costs may enter.
"""

from __future__ import annotations

import functools
import math

from amp.graph_rewrite.graph import ir

# Sizes assumed for an unknown dimension and for a tensor of unknown rank. Only relative
# costs depend on them; 32 is the default batch size of Keras' fit.
UNKNOWN_DIMENSION = 32
UNKNOWN_ELEMENTS = 1024
# Trips assumed for a loop of unknown length.
UNKNOWN_TRIPS = 10


def whole(shape: ir.Shape) -> bool:
    """Whether all of a shape is known."""
    return shape is not None and -1 not in shape


@functools.lru_cache(maxsize=4096)  # most tensors have another one's shape
def elements(shape: ir.Shape) -> int:
    """Number of elements, with the defaults above for what is unknown."""
    if shape is None:
        return UNKNOWN_ELEMENTS
    if -1 in shape:
        shape = tuple(UNKNOWN_DIMENSION if size < 0 else size for size in shape)
    return math.prod(shape)


def known_sizes(shape: ir.Shape) -> tuple[int, ...] | None:
    """A shape with `UNKNOWN_DIMENSION` for unknown sizes; None for unknown rank."""
    if shape is None:
        return None
    return tuple(size if size >= 0 else UNKNOWN_DIMENSION for size in shape)
