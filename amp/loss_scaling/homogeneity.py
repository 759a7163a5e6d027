"""Whether results are multiplied by what their inputs are multiplied by.

Of nodes that were just built: a gradient that clips what comes in, takes its sign or
leaves it out is not, and loss scaling would change it. Told are those of which it is
certain; nothing is built or run here, and nothing decided.

A tensor has *degree* d if it is multiplied by s^d where what came in is multiplied by
s > 0. A gradient has to have degree 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# A number; or what nothing is known of, what has no degree, or zeros, of any degree.
Degree: TypeAlias = "Fraction | str"
UNKNOWN, NONE, ZERO = "unknown", "none", "zero"
_NUMBER, _ONE = Fraction(0), Fraction(1)

# What the only input of some degree is raised to; others are sizes, axes, indices.
_POWERS: Mapping[str, Fraction] = {
    **dict.fromkeys(
        [
            "Abs",
            "BiasAddGrad",
            "BroadcastTo",
            "Cast",
            "ExpandDims",
            "GatherNd",
            "GatherV2",
            "Identity",
            "LeakyRelu",
            "MatrixBandPart",
            "Max",
            "Mean",
            "Min",
            "MirrorPad",
            "Neg",
            "Pad",
            "PreventGradient",
            "Relu",
            "Reshape",
            "ReverseV2",
            "Roll",
            "Slice",
            "Snapshot",
            "Split",
            "SplitV",
            "Squeeze",
            "StopGradient",
            "StridedSlice",
            "Sum",
            "Tile",
            "Transpose",
            "Unpack",
        ],
        _ONE,
    ),
    **dict.fromkeys(("Square", "L2Loss"), Fraction(2)),
    **dict.fromkeys(("Reciprocal", "Inv"), Fraction(-1)),
    **dict.fromkeys(("IsFinite", "IsInf", "IsNan", "Sign"), _NUMBER),
    "Sqrt": Fraction(1, 2),
    "Rsqrt": Fraction(-1, 2),
}
# Of these the degrees of the inputs add up,
_PRODUCTS = frozenset(
    [
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "Conv3D",
        "Conv3DBackpropFilterV2",
        "Conv3DBackpropInputV2",
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropFilter",
        "DepthwiseConv2dNativeBackpropInput",
        "Einsum",
        "MatMul",
        "Mul",
        "MulNoNan",
    ]
)
# or the second's is taken away,
_RATIOS = frozenset(("Div", "DivNoNan", "RealDiv", "Xdivy"))
# or all have to be the same,
_ALIKE = frozenset(
    [
        "Add",
        "AddN",
        "AddV2",
        "ClipByValue",
        "ConcatV2",
        "Maximum",
        "Minimum",
        "Pack",
        "Sub",
    ]
)
# or they are those of one input, at this position, if no other has any.
_LINEAR: Mapping[str, int] = {
    **dict.fromkeys(("Cumsum", "FusedBatchNormGradV3", "LeakyReluGrad"), 0),
    **dict.fromkeys(("EluGrad", "Relu6Grad", "ReluGrad", "SeluGrad"), 0),
    **dict.fromkeys(("ResizeBilinearGrad", "ResizeNearestNeighborGrad"), 0),
    **dict.fromkeys(("SegmentSum", "UnsortedSegmentSum"), 0),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad"), 0),
    **dict.fromkeys(("AvgPoolGrad", "ScatterNd", "SigmoidGrad", "TanhGrad"), 1),
    **dict.fromkeys(("InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad"), 1),
    **dict.fromkeys(("MaxPoolGrad", "MaxPoolGradV2"), 2),
}
_COMPARE = frozenset(
    ["Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"]
)
_CHOICES = frozenset(("Select", "SelectV2"))
_SHAPES = frozenset(("OnesLike", "Rank", "Shape", "ShapeN", "Size"))
# Of a number again, but of nothing else.
_BENT = frozenset(
    [
        "Acos",
        "Asin",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Digamma",
        "Elu",
        "Erf",
        "Erfc",
        "Exp",
        "Expm1",
        "Floor",
        "Lgamma",
        "Log",
        "Log1p",
        "LogSoftmax",
        "Relu6",
        "Rint",
        "Round",
        "Selu",
        "Sigmoid",
        "Sin",
        "Sinh",
        "Softmax",
        "Softplus",
        "Softsign",
        "Tanh",
    ]
)


# Gives the graph of a function that an operation calls, None if it is not known.
Body: TypeAlias = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known of nodes besides what they are.

    Attributes:
      body: see there.
      made_whole: see `eager_backward.Passing`; such a result has the degree of what was
        given, whatever was built between.
    """

    body: Body = lambda operation: None
    made_whole: Mapping[Any, Sequence[tf.Tensor]] = dataclasses.field(
        default_factory=dict
    )


def bent(
    operations: Iterable[Any],
    given: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    known: Known | None = None,
) -> bool:
    """Whether a result is certain not to be of degree 1 in what was given.

    One that does not depend on it is not, if none does, or if it is the same in every
    run: what is computed, beside others, may be no gradient.

    Args:
      operations: those built since, in the order in which they were.
      given: the tensors that came in.
      results: of floating type.
      known: see there.
    """
    degrees: dict[Any, Degree] = {tensor.ref(): _ONE for tensor in given}
    _follow(operations, degrees, known or Known())
    told = {each.ref(): _of(each, degrees) for each in results}
    kinds = {*told.values()} - {ZERO}
    if not kinds <= {_ONE, UNKNOWN, _NUMBER} or kinds == {_NUMBER}:
        return True
    fixed = (ref.deref() for ref, degree in told.items() if degree == _NUMBER)
    return any(tf.get_static_value(each) is not None for each in fixed)


def _follow(
    operations: Iterable[Any], degrees: dict[Any, Degree], known: Known
) -> None:
    """Adds the degrees of what operations compute."""
    for operation in operations:  # values are looked at beside what came in alone
        outputs = operation.outputs
        if any(each.ref() in degrees for each in operation.inputs):
            inputs = [_of(each, degrees) for each in operation.inputs]
            body = known.body(operation)
            if body is None:
                found = [_degree(operation, inputs)] * len(outputs)
            else:
                found = _called(body, inputs, known)
            pairs = zip(outputs, found, strict=True)
            degrees.update((output.ref(), degree) for output, degree in pairs)
        for output in outputs:
            if output.ref() in known.made_whole:
                came = {_of(each, degrees) for each in known.made_whole[output.ref()]}
                degrees[output.ref()] = came.pop() if len(came) == 1 else UNKNOWN


def _called(body: Any, inputs: Sequence[Degree], known: Known) -> list[Degree]:
    """The degrees of the results of a function for those of its arguments."""
    pairs = zip(body.inputs, inputs, strict=True)
    degrees = {given.ref(): degree for given, degree in pairs if degree != _NUMBER}
    _follow(body.get_operations(), degrees, known)
    return [_of(each, degrees) for each in body.outputs]


def _of(tensor: tf.Tensor, degrees: Mapping[Any, Degree]) -> Degree:
    """The degree of a tensor: a number, if it does not depend on what came in."""
    found = degrees.get(tensor.ref(), _NUMBER)
    if found == _NUMBER and tensor.dtype.is_floating:
        value = tf.get_static_value(tensor)
        if value is not None and not np.any(value):
            return ZERO
    return found


def _degree(operation: Any, inputs: Sequence[Degree]) -> Degree:
    """The degree of the results of an operation."""
    kind = operation.type
    if kind == "ZerosLike":
        return ZERO
    moved = [degree for degree in inputs if degree != _NUMBER]
    if kind in _SHAPES or not moved:
        return _NUMBER
    for least in (UNKNOWN, NONE):
        if least in moved:
            return least
    if kind in _ALIKE:
        return _same(inputs)
    if kind in _COMPARE:
        return NONE if _same(inputs) == NONE else _NUMBER
    if kind in _CHOICES and inputs[0] == _NUMBER:
        return _same(inputs[1:])
    if ZERO in moved:
        return ZERO if kind in _PRODUCTS else UNKNOWN
    numbers = [Fraction(degree) for degree in inputs]
    if kind in _PRODUCTS:
        return sum(numbers, _NUMBER)
    if kind in _RATIOS:
        return numbers[0] - numbers[1]
    if kind in _POWERS and len(moved) == 1:
        return Fraction(moved[0]) * _POWERS[kind]
    if kind in _LINEAR and len(moved) == 1 and inputs[_LINEAR[kind]] == moved[0]:
        return moved[0]
    return NONE if kind in _BENT else UNKNOWN


def _same(inputs: Sequence[Degree]) -> Degree:
    """Of a sum, a larger or smaller one, or a choice."""
    found = {degree for degree in inputs if degree != ZERO}
    if len(found) > 1:
        return NONE
    return found.pop() if found else ZERO
