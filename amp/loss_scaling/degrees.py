"""Degrees: how the results of an operation grow with its inputs.

A tensor has *degree* d if it is multiplied by s^d where what came in is multiplied by
s > 0; what does not depend on it is a number, of degree 0. A row of the tables
gives the degree of one operation. Graphs are not followed here, except for zeros, back
to where they are made, and functions are not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.ops.structure import PYTHON

# A number; or one of what follows.
Degree: TypeAlias = "Fraction | str"
UNKNOWN = "unknown"  # nothing is known
NONE = "none"  # certain to have no degree
ZERO = "zero"  # of zeros, which have any
HIDDEN = "hidden"  # computed by Python, where nobody can look
NUMBER, ONE = Fraction(0), Fraction(1)


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


# The degree is that of the only input with one; others are sizes, axes, indices.
_KEPT = _ops("""
    Abs AvgPool AvgPool3D BatchToSpace BatchToSpaceND BiasAddGrad BroadcastTo Cast
    CheckNumerics CheckNumericsV2 ComplexAbs Conj ConjugateTranspose DepthToSpace Diag
    DiagPart DynamicPartition EnsureShape EuclideanNorm ExpandDims ExtractImagePatches
    ExtractVolumePatches FFT FFT2D FFT3D Fill GatherNd GatherV2 IFFT IFFT2D IFFT3D IRFFT
    IRFFT2D IRFFT3D Identity Imag LeakyRelu MatrixBandPart MatrixDiag MatrixDiagPart Max
    MaxPool MaxPool3D MaxPoolV2 MaxPoolWithArgmax Mean Min MirrorPad Neg NthElement Pad
    PreventGradient RFFT RFFT2D RFFT3D RandomShuffle Real Relu Reshape ResizeArea
    ResizeBicubic ResizeBilinear ResizeNearestNeighbor ReverseSequence ReverseV2 Roll
    Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze
    StopGradient StridedSlice StridedSliceGrad Sum TensorListConcatV2
    TensorListFromTensor TensorListGather TensorListGetItem TensorListPopBack
    TensorListResize TensorListStack Tile TopKV2 Transpose Unpack
""")
# What the degree of such an input is raised to.
_POWERS: Mapping[str, Fraction] = {
    **dict.fromkeys(_KEPT, ONE),
    **dict.fromkeys(("Square", "L2Loss"), Fraction(2)),
    **dict.fromkeys(("Inv", "MatrixInverse", "Reciprocal"), Fraction(-1)),
    **dict.fromkeys(("Angle", "IsFinite", "IsInf", "IsNan", "Sign"), NUMBER),
    **dict.fromkeys(("ArgMax", "ArgMin", "Where"), NUMBER),
    **dict.fromkeys(("Cholesky", "MatrixSquareRoot", "Sqrt"), Fraction(1, 2)),
    "Rsqrt": Fraction(-1, 2),
}
# The same of what has several results: of each.
_PARTS: Mapping[str, tuple[Fraction, ...]] = {
    "Eig": (ONE, NUMBER),
    "Qr": (NUMBER, ONE),
    "SelfAdjointEigV2": (ONE, NUMBER),
    "Svd": (ONE, NUMBER, NUMBER),
}
# Of these the degrees of the inputs add up,
_PRODUCTS = _ops("""
    BatchMatMul BatchMatMulV2 BatchMatMulV3 Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 Cross
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Einsum MatMul Mul MulNoNan SparseMatMul
    SparseTensorDenseMatMul
""")
# or the second's is taken away, or the first's,
_RATIOS = frozenset(("Div", "DivNoNan", "RealDiv", "Xdivy"))
_SOLUTIONS = frozenset(("MatrixSolve", "MatrixTriangularSolve", "TridiagonalSolve"))
# or all that are no indices have to be the same, which then is the result's,
_ALIKE = _ops("""
    AccumulateNV2 Add AddN AddV2 ClipByValue Complex ConcatV2 DynamicStitch
    FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel FloorMod
    MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag
    MatrixSetDiagV2 MatrixSetDiagV3 Maximum Minimum Mod OneHot Pack PadV2
    ParallelDynamicStitch SparseToDense Sub TensorListPushBack TensorListSetItem
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate TruncateMod
""")
# or which then is 0,
_COMPARE = _ops("""
    Atan2 Equal FloorDiv Greater GreaterEqual HistogramFixedWidth Less LessEqual
    LowerBound NotEqual TruncateDiv UpperBound
""")
# or they are those of one input, at this position, if no other has any.
_LINEAR: Mapping[str, int] = {
    **dict.fromkeys(("Cumsum", "FusedBatchNormGradV3", "LeakyReluGrad"), 0),
    **dict.fromkeys(("EluGrad", "Relu6Grad", "ReluGrad", "SeluGrad"), 0),
    **dict.fromkeys(("ResizeBicubicGrad", "ResizeBilinearGrad"), 0),
    "ResizeNearestNeighborGrad": 0,
    **dict.fromkeys(("SegmentMax", "SegmentMean", "SegmentMin", "SegmentSum"), 0),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad", "UnsortedSegmentSum"), 0),
    **dict.fromkeys(("Xlog1py", "Xlogy"), 0),
    **dict.fromkeys(("AvgPool3DGrad", "AvgPoolGrad", "ScatterNd"), 1),
    **dict.fromkeys(("SigmoidGrad", "TanhGrad"), 1),
    **dict.fromkeys(("InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad"), 1),
    **dict.fromkeys(("DenseBincount", "MaxPool3DGrad", "MaxPoolGrad"), 2),
    "MaxPoolGradV2": 2,
}
_CHOICES = frozenset(("Select", "SelectV2"))
_SHAPES = _ops("""
    OnesLike Rank Shape ShapeN Size TensorListElementShape TensorListLength
""")
# What gives zeros, lists of nothing yet among them; and what gives no others than it
# reads, at this position.
_ZEROS = frozenset(("EmptyTensorList", "TensorListReserve", "ZerosLike"))
_SPREAD: Mapping[str, int] = {
    **dict.fromkeys(("BroadcastTo", "Cast", "ExpandDims", "Identity", "Reshape"), 0),
    **dict.fromkeys(("TensorListFromTensor", "TensorListStack", "Tile"), 0),
    "Fill": 1,
}
# Of a number again, but of nothing else.
_BENT = _ops("""
    Acos Acosh ApproximateEqual AsString Asin Asinh Atan Atanh BesselI0 BesselI0e
    BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
    BesselY0 BesselY1 Betainc Bucketize Ceil Cos Cosh Cumprod CumulativeLogsumexp
    Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs Floor
    FresnelCos FresnelSin Igamma Igammac LRN Lgamma Log Log1p LogSoftmax
    MatrixLogarithm Multinomial Ndtri Polygamma Relu6 Rint Round Selu Sigmoid Sin
    Sinh Softmax Softplus Softsign SparseSoftmaxCrossEntropyWithLogits Spence
    StatelessMultinomial Tan Tanh Zeta
""")


def of_results(operation: Any, inputs: Sequence[Degree]) -> list[Degree]:
    """The degrees of the results of an operation for those of its inputs.

    Args:
      operation: of TensorFlow, that calls no function.
      inputs: the degree of each of its inputs.
    """
    outputs = operation.outputs
    if operation.type == "IdentityN":
        return list(inputs)
    parts = _PARTS.get(operation.type)
    moved = [degree for degree in inputs if degree != NUMBER]
    if parts is not None and len(moved) == 1 and isinstance(moved[0], Fraction):
        return [moved[0] * power for power in parts[: len(outputs)]]
    degree = _of(operation, inputs, moved)
    return [_rounded(operation, degree, output.dtype) for output in outputs]


def tells(operation: Any) -> bool:
    """Whether an operation tells a variable what it reads: training may read it again.

    What is printed, asserted or put into a queue is left as it is.
    """
    return facts(operation.type).kind is Kind.WRITE


def of_number(tensor: tf.Tensor) -> Degree:
    """The degree of what does not depend on what came in: of zeros, any."""
    if tensor.dtype.is_floating:
        value = tf.get_static_value(tensor)
        if value is not None:
            return NUMBER if np.any(value) else ZERO
    operation = tensor.op
    if operation.type in _SPREAD:
        return of_number(operation.inputs[_SPREAD[operation.type]])
    return ZERO if operation.type in _ZEROS else NUMBER


def least(degrees: Collection[Degree]) -> Degree | None:
    """The one of some degrees that is none, and goes over to all computed of them."""
    return next((each for each in (HIDDEN, UNKNOWN, NONE) if each in degrees), None)


def alike(degrees: Collection[Degree]) -> Degree:
    """Of a sum, a larger or smaller one, or a choice."""
    if (none := least(degrees)) is not None:
        return none
    found = {degree for degree in degrees if degree != ZERO}
    if len(found) > 1:
        return NONE
    return found.pop() if found else ZERO


def _rounded(operation: Any, degree: Degree, dtype: tf.DType) -> Degree:
    """The degree of a result that has no fractions, if it has such a type."""
    if least([degree]) is not None or not (dtype.is_integer or dtype.is_bool):
        return degree
    rounded = operation.type == "Cast" and dtype.is_integer and degree != NUMBER
    return NONE if rounded else NUMBER  # others are indices, and counts


def _of(operation: Any, inputs: Sequence[Degree], moved: Sequence[Degree]) -> Degree:
    kind = operation.type
    if kind in _ZEROS:
        return ZERO
    if kind in _SHAPES or not moved:
        return NUMBER
    if (none := least(moved)) is not None:
        return none
    if kind in PYTHON:
        return HIDDEN
    if kind in _CHOICES and inputs[0] == NUMBER:
        return alike(inputs[1:])
    if kind in _ALIKE:
        return alike(_no_indices(operation, inputs))
    if kind in _COMPARE:
        return NONE if alike(_no_indices(operation, inputs)) == NONE else NUMBER
    if kind in _SPECIAL:
        return _SPECIAL[kind](operation, inputs)
    if kind in _POWERS and len(moved) == 1:
        return _power(moved[0], _POWERS[kind])
    if ZERO in moved:
        return ZERO if kind in _PRODUCTS else UNKNOWN
    numbers = [Fraction(degree) for degree in inputs]
    if kind in _PRODUCTS:
        return sum(numbers, NUMBER)
    if kind in _RATIOS:
        return numbers[0] - numbers[1]
    if kind in _SOLUTIONS:
        return numbers[1] - numbers[0]
    if kind in _LINEAR and len(moved) == 1 and inputs[_LINEAR[kind]] == moved[0]:
        return moved[0]
    return NONE if kind in _BENT else UNKNOWN


def _power(degree: Degree, power: Fraction) -> Degree:
    if degree == ZERO:
        return ZERO if power > 0 else UNKNOWN
    return Fraction(degree) * power


def _no_indices(operation: Any, degrees: Sequence[Degree]) -> list[Degree]:
    """The degrees of inputs that are no numbers of type int: axes, indices, depths."""
    pairs = zip(operation.inputs, degrees, strict=True)
    return [one for each, one in pairs if not each.dtype.is_integer or one != NUMBER]


def _raised(operation: Any, inputs: Sequence[Degree]) -> Degree:
    """Of a power, whose exponent may be a constant."""
    base, exponent = inputs
    if exponent != NUMBER:
        return UNKNOWN if exponent == ZERO else NONE
    value = tf.get_static_value(operation.inputs[1])
    if value is None or value.size == 0 or (value != value.flat[0]).any():
        return UNKNOWN
    # Of a root that is not exact in floating point, the fraction that was meant.
    return _power(base, Fraction(float(value.flat[0])).limit_denominator(64))


def _difference_squared(operation: Any, inputs: Sequence[Degree]) -> Degree:
    return of if (of := alike(inputs)) in (NONE, ZERO) else _power(of, Fraction(2))


def _multiplied(operation: Any, inputs: Sequence[Degree]) -> Degree:
    """Of a product of values of one tensor, by how many they are."""
    given, result = operation.inputs[0].shape, operation.outputs[0].shape
    if not (given.is_fully_defined() and result.is_fully_defined()):
        return UNKNOWN
    if not result.num_elements() or inputs[0] == NUMBER:
        return UNKNOWN
    return _power(inputs[0], Fraction(given.num_elements(), result.num_elements()))


def _determinant(operation: Any, inputs: Sequence[Degree]) -> Degree:
    size = operation.inputs[0].shape[-1]
    return UNKNOWN if size is None else _power(inputs[0], Fraction(size))


def _quantized(operation: Any, inputs: Sequence[Degree]) -> Degree:
    """To so many steps, of a range that is given or found in the values."""
    given = operation.get_attr("range_given")
    return alike(_no_indices(operation, inputs)) if given else inputs[0]


_SPECIAL: Mapping[str, Callable[[Any, Sequence[Degree]], Degree]] = {
    "MatrixDeterminant": _determinant,
    "Pow": _raised,
    "Prod": _multiplied,
    "SquaredDifference": _difference_squared,
    **dict.fromkeys(("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3"), _quantized),
    "QuantizeAndDequantizeV4": _quantized,
}
