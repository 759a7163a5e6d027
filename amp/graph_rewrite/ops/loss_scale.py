"""The ops of a loss scale, as `amp.loss_scaling` builds it, and of what waits for it.

A table only: no graph is walked here.
"""

from __future__ import annotations

SCALE = "Mul"  # a seed by the scale, with the attribute SEED
UNSCALE = "MulNoNan"  # a gradient by the inverse of the scale, with UNSCALE
SUM_ROWS = "UnsortedSegmentSum"  # of IndexedSlices, before they are checked
FINITE, EVERY = "IsFinite", "All"  # the check of a gradient
# Of operands that are all True, or all False, they give the same, or its opposite.
AGREE = frozenset({"All", "Any", "Identity", "LogicalAnd", "LogicalOr", "Pack"})
OPPOSITE = "LogicalNot"
REDUCED = frozenset({"All", "Any"})  # whose other operand is axes
BRANCH = frozenset({"If", "StatelessIf"})  # an update that an overflow skips
CALL = "StatefulPartitionedCall"  # of the branch that is left
