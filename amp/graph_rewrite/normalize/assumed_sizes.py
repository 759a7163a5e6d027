"""Sizes for tensors whose sizes follow from nothing that is known.

Only costs depend on them. Nothing is inferred from them here, but in `graph_sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from amp.graph_rewrite.graph import ir, shapes


class AssumedSizes:
    """Gives sizes to assume.

    An unknown dimension is taken to be as long as the same dimension of the first
    argument that has one: what the backward pass of a loop pops from a list has the
    batch's size again. If there is none, `shapes.UNKNOWN_DIMENSION`.

    Args:
      known: the shapes that were taken from the call.
    """

    def __init__(self, known: Iterable[ir.Shape] = ()) -> None:
        self._sizes: dict[int, int] = {}
        for shape in known:
            for axis, size in enumerate(shape or ()):
                if size > 0:
                    self._sizes.setdefault(axis, size)

    def shape(self, partly: ir.Shape, given: Sequence[ir.Shape]) -> ir.Shape:
        """The shape to assume for an output.

        Args:
          partly: the shape as far as it is known; None if the rank is not: then it is
            the shape of the largest input.
          given: the shapes of the node's inputs.
        """
        if partly is None:
            return max(filter(shapes.whole, given), key=shapes.elements, default=None)
        return tuple(
            self._size(axis) if size < 0 else size for axis, size in enumerate(partly)
        )

    def reshaped(self, partly: ir.Shape, given: ir.Shape) -> ir.Shape:
        """The same for a reshaped tensor, which keeps the number of elements.

        Args:
          partly: its new shape as far as it is known.
          given: its shape before, all of it known.
        """
        count = shapes.elements(given)
        if partly is None:
            return (count,)
        sizes = list(partly)
        free = [axis for axis, size in enumerate(partly) if size < 0]
        left = count // max(math.prod(size for size in partly if size >= 0), 1)
        for axis in free[:-1]:
            size = self._size(axis)
            sizes[axis] = size if left % size == 0 else 1
            left //= sizes[axis]
        if free:
            sizes[free[-1]] = left
        return tuple(sizes)

    def _size(self, axis: int) -> int:
        return self._sizes.get(axis, shapes.UNKNOWN_DIMENSION)
