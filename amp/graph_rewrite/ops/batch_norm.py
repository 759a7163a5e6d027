"""Batch normalization as programs write it out, and the ops that compute it as one.

Facts only: the arithmetic, step by step, with the name of each value; `normalize.
batch_norms` finds it in graphs. It is that of `tf.nn.moments` and
`tf.nn.batch_normalization` (tensorflow/python/ops/nn_impl.py), which Keras 3 calls, and
of their gradients (math_grad.py), which are those of Ioffe and Szegedy (2015), section
3, for the batch's own moments.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

FUSED, FUSED_GRADIENT = "FusedBatchNormV3", "FusedBatchNormGradV3"
# Outputs of `FUSED` and of `FUSED_GRADIENT`.
RESULT, MEAN, VARIANCE, RESERVED = 0, 1, 2, (3, 4, 5)
BY_DATA, TO_SCALE, BY_OFFSET = 0, 1, 2
# Ops that repeat a vector along the other axes of the data.
REPEATS = frozenset({"BroadcastTo", "Tile"})
# How the gradient of a mean counts the elements of a channel, where the batch is not
# known when it is traced: from the shape of the data, by these, the outermost first.
COUNTED = ("Cast", "Prod", "GatherV2", "Shape")
# By which the axes that are counted are computed from numbers.
ARITHMETIC = {"AddV2": operator.add, "FloorMod": operator.mod}


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One value of the arithmetic.

    Attributes:
      name: of the value.
      ops: that compute it, any of them.
      reads: names of the values that it is computed from, in order: other parts, or
        what is found where the first part that reads it has it.
      swaps: whether the two may stand the other way round.
    """

    name: str
    ops: frozenset[str]
    reads: tuple[str, ...]
    swaps: bool = False


def _part(name: str, ops: str, reads: str, swaps: bool = False) -> Part:
    return Part(name, frozenset(ops.split()), tuple(reads.split()), swaps)


# With N elements a channel, y = scale (x - mean) / sqrt(variance + epsilon) + offset;
# of a gradient dy by y, the gradients by offset and, in three terms, by x. In an order
# in which each part is read by one before it, or reads one.
PARTS = (
    _part("by_variance", "RsqrtGrad", "root by_root"),
    _part("root", "Rsqrt", "shifted"),
    _part("shifted", "AddV2 Add", "variance epsilon", swaps=True),
    _part("variance", "Mean", "deviation axes_of_variance"),
    _part("deviation", "SquaredDifference", "x mean", swaps=True),
    _part("mean", "Mean", "x axes_of_mean"),
    _part("factor", "Mul", "root scale", swaps=True),
    _part("scaled", "Mul", "x factor", swaps=True),
    _part("moved", "Mul", "mean factor", swaps=True),
    _part("term", "Sub", "offset moved"),
    _part("y", "AddV2 Add", "scaled term", swaps=True),
    _part("by_root", "Mul", "by_factor scale", swaps=True),
    _part("by_factor", "AddN AddV2 Add", "by_product by_shift", swaps=True),
    _part("by_shift", "Mul", "negative mean", swaps=True),
    _part("negative", "Neg", "by_offset"),
    _part("by_offset", "Sum", "dy axes_of_offset"),
    _part("by_product", "Sum", "product axes_of_product"),
    _part("product", "Mul", "x dy", swaps=True),
    _part("direct", "Mul", "dy factor", swaps=True),
    _part("by_mean", "Mul", "negative factor", swaps=True),
    _part("through_mean", "RealDiv", "by_mean count"),
    _part("shared", "RealDiv", "by_variance count_again"),
    _part("twice", "Mul", "two shared", swaps=True),
    _part("centred", "Sub", "x mean"),
    _part("through_variance", "Mul", "twice centred", swaps=True),
)
# What the kernels read in the shape of the data.
DATA = frozenset({"x", "dy"})
# The gradient by the scale, where there is one.
BY_SCALE = _part("by_scale", "Mul", "by_factor root", swaps=True)
# The terms of the gradient by x, which one node of `ADDS` adds up, with others or not.
TERMS = ("direct", "through_mean", "through_variance")
ADDS = "AddN"
# Values as large as the data, which nothing else may read. What else reads the others,
# which have one element a channel, reads them as before.
LARGE = ("deviation", "scaled", "product", "shared", "twice", "centred", *TERMS)
AXES = ("axes_of_mean", "axes_of_variance", "axes_of_offset", "axes_of_product")
COUNTS = ("count", "count_again")
# How often more the parts move the data than the kernels that stand for them. Parts as
# large as the data: 7 reads and writes forward, 24 backward. The kernels go through the
# data once for their sums and once more for their result: 4 and 5.
PASSES_FORWARD, PASSES_BACKWARD = 7 - 4, 24 - 5


def unscaled(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same arithmetic without a scale: the factor is the root alone."""
    same = {"factor": "root", "by_root": "by_factor"}
    return tuple(
        dataclasses.replace(part, reads=tuple(same.get(r, r) for r in part.reads))
        for part in parts
        if part.name not in same
    )
