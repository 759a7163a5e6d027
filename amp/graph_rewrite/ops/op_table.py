"""The white-list: for each op the role, the float32 ports, the cost class, why, source.

Facts only: no TensorFlow, no graph, no device, no decision that needs more than a row.

An op that has no row is never converted. `Cast`, `Const`, `ReadVariableOp` and the
random ops are left out on purpose: the rewrite makes the first, folds the second, and
may not choose the type of the others.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from amp.errors import AmpError


class Role(enum.Enum):
    """What the rewrite may do with an op.

    `MOVE` is strict: each output value is an input value, 0 or 1, so that a cast may
    cross the op and no value changes. Whatever compares or changes sign is `FOLLOW`.
    """

    COMPUTE = "compute"  # where propagation starts
    FOLLOW = "follow"  # converted when beside low nodes
    MOVE = "move"  # no arithmetic
    KEEP = "keep"  # always float32


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What is known of one op.

    Attributes:
      op: OpDef name.
      role: what the rewrite may do with it.
      why: the reason for the role, and for a role that differs from TensorFlow's list.
      source: where the reason comes from, a key of `SOURCES`.
      attrs: type attributes that turn 16-bit, together; empty where the op passes a
        list handle and names no element type.
      float32_ports: arguments, by OpDef name, that stay float32 when the op is 16-bit.
      work: class of the op in the cost model, one of `WORK`.
      singular: flat input ports at which a tiny positive value that turns into 0 gives
        inf, NaN, an infinite derivative, or (`DivNoNan`) a jump to 0.
      bounded: no input, however large, makes the output large.
      sums: a 16-bit output element is the sum or mean of many input elements.
      accumulates_low: 16-bit types for which TensorFlow's CPU kernel adds up in that
        type (whole or block by block), not in float32.
      same_list: a list op; its element type is that of all ops on the same list.
    """

    op: str
    role: Role
    why: str
    source: str
    attrs: tuple[str, ...] = ("T",)
    float32_ports: tuple[str, ...] = ()
    work: str = "elementwise"
    singular: tuple[int, ...] = ()
    bounded: bool = False
    sums: bool = False
    accumulates_low: tuple[str, ...] = ()
    same_list: bool = False


_HEADER = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h, 2.21"

SOURCES: Mapping[str, str] = {
    "tf:allow": f"AllowList of float16 or oneDNN in {_HEADER}",
    "tf:infer": f"InferList of float16 or oneDNN in {_HEADER}",
    "tf:deny": f"DenyList of float16 or oneDNN in {_HEADER}",
    "tf:clear": f"ClearList of float16 or oneDNN in {_HEADER}",
    "opdef": "the OpDef that TensorFlow 2.21 registers: types allowed, ports fixed",
    "measured": "CPU kernels of TensorFlow 2.21, run on probes in both 16-bit types",
    "definition": "the mathematical definition of the op",
}

WORK = (
    *("matmul", "batch_matmul", "einsum", "conv", "conv_grad_input"),
    *("conv_grad_filter", "depthwise", "rnn"),
    *("elementwise", "transcendental", "reduce", "softmax", "normalise", "pool"),
    *("gather", "copy"),  # moves bytes
    "free",  # moves no bytes
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _by_op(groups: Mapping[tuple[Any, ...], str]) -> dict[str, tuple[Any, ...]]:
    return {op: value for value, ops in groups.items() for op in _words(ops)}


_SINGULAR: dict[str, tuple[int, ...]] = _by_op(
    {
        (0,): "Inv Log Pow Reciprocal Rsqrt Sqrt SqrtGrad",
        (1,): "Div DivNoNan FloorDiv RealDiv Xdivy Xlogy",
    }
)

_BOUNDED = frozenset(
    _words(
        """
        Erf Erfc OnesLike Relu6 Sigmoid Sign Softmax Softsign Tanh ZerosLike
        ArgMax ArgMin Equal Greater GreaterEqual IsFinite IsInf IsNan Less LessEqual
        NotEqual Rank Shape ShapeN Size Where
        """
    )
)

# Not here: Softmax, LRN and FusedBatchNorm*, which divide by a sum or return it in
# float32, and AddN, MirrorPadGrad and gradients of pooling, which add up a few.
_SUMS = frozenset(
    _words(
        """
        AvgPool AvgPool3D BiasAddGrad CumulativeLogsumexp Cumsum L2Loss Mean
        ResizeBilinearGrad ResizeNearestNeighborGrad ScatterNd SegmentMean SegmentSum
        SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum Sum TensorScatterAdd
        TensorScatterSub UnsortedSegmentSum
        """
    )
)

# Measured on a CPU without 16-bit instructions, TensorFlow 2.21, against the same
# kernel in float32 on the same 16-bit values: ones, and uniform values from 0.5 to 1.5,
# 10,000 of them along the reduction (60,000 for products, fewer for windows). Listed:
# off by more than 2 units in the last place (float32 accumulators are off by 1 at most)
# or past 65504 within the sum. oneDNN, where it serves a type, may do better.
# - Stuck at 256 (bfloat16) or 2048 (float16): BiasAddGrad, Cumsum, the scatters,
#   UnsortedSegmentSum, depthwise convolutions, Einsum to a scalar or a row.
# - Stuck later: Sum and Mean in float16 at 8192 over an outer axis, at 2048 over axes 0
#   and 2 of three; SegmentSum at 8192 and 1024.
# - Blocks rounded one by one: Conv3D, the gradients of convolutions, and Einsum as a
#   product (10,000 ones give 6656 or 3328 in bfloat16; 3 to 14 units in float16).
# - Softmax and LogSoftmax in float16 are exact until the sum of the exponentials passes
#   65504: 131,072 equal logits give 0 and -inf. Mean overflows alike.
# MatMul, BatchMatMul*, Conv2D, Conv, L2Loss, SparseSegment*, ResizeBilinearGrad and the
# statistics of FusedBatchNorm* add up in float32. Types without a kernel are left out.
_FLOAT16, _BFLOAT16 = "float16", "bfloat16"
_LOW: dict[str, tuple[str, ...]] = _by_op(
    {
        (_FLOAT16, _BFLOAT16): """
            AccumulateNV2 AddN AvgPool AvgPoolGrad Conv2DBackpropFilter
            Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2
            Cumprod Cumsum CumulativeLogsumexp DepthwiseConv2dNative
            DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
            Einsum MaxPoolGrad MaxPoolGradV2 MaxPoolGradWithArgmax Prod
            ResizeNearestNeighborGrad ScatterNd SegmentMean SegmentSum
            TensorScatterAdd TensorScatterSub UnsortedSegmentSum
            """,
        (_FLOAT16,): """
            BlockLSTMGrad BlockLSTMGradV2 FusedPadConv2D LRN LRNGrad LogSoftmax Mean
            Softmax Sum
            """,
        (_BFLOAT16,): "AvgPool3D AvgPool3DGrad BiasAddGrad MaxPool3DGrad",
    }
)


def _rows(role: Role, ops: str, why: str, source: str, **more: Any) -> list[Row]:
    return [
        Row(
            op=op,
            role=role,
            why=why,
            source=source,
            singular=_SINGULAR.get(op, ()),
            bounded=op in _BOUNDED,
            sums=op in _SUMS,
            accumulates_low=_LOW.get(op, ()),
            **more,
        )
        for op in _words(ops)
    ]


_compute = functools.partial(_rows, Role.COMPUTE)
_follow = functools.partial(_rows, Role.FOLLOW)
_move = functools.partial(_rows, Role.MOVE)
_keep = functools.partial(_rows, Role.KEEP)
_list = functools.partial(
    _rows, Role.MOVE, attrs=("element_dtype",), source="tf:clear", same_list=True
)


_PRODUCTS = [
    _compute("MatMul", "matrix product", "tf:allow", work="matmul"),
    _compute(
        "BatchMatMul BatchMatMulV2", "matrix product", "tf:allow", work="batch_matmul"
    ),
    _compute(
        "BatchMatMulV3",
        "BatchMatMulV2 with a type for each operand, which turn together",
        "definition",
        attrs=("Ta", "Tb", "Tout"),
        work="batch_matmul",
    ),
    _compute("Einsum", "matrix products by equation", "tf:allow", work="einsum"),
    _compute("Conv2D Conv3D", "convolution", "tf:allow", work="conv"),
    _compute("FusedPadConv2D", "convolution that pads", "tf:allow", work="conv"),
    _compute("Conv", "Conv2D or Conv3D, by rank", "definition", work="conv"),
    _compute(
        "FusedConv2DBiasActivation",
        "convolution with bias; the half kernel takes a half bias; no OpDef here",
        "tf:allow",
        attrs=("T", "Tbias"),
        float32_ports=_words("conv_input_scale side_input_scale"),
        work="conv",
    ),
    _compute(
        "Conv2DBackpropInput Conv3DBackpropInput Conv3DBackpropInputV2",
        "gradient of a convolution, and the transposed convolution",
        "tf:allow",
        work="conv_grad_input",
    ),
    _compute(
        "Conv2DBackpropFilter Conv3DBackpropFilter Conv3DBackpropFilterV2",
        "gradient of a convolution",
        "tf:allow",
        work="conv_grad_filter",
    ),
    _compute(
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter "
        "DepthwiseConv2dNativeBackpropInput",
        "convolution a channel; bound by bytes, which halve",
        "tf:allow",
        work="depthwise",
    ),
    _compute(
        "CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 "
        "CudnnRNNV3",
        "matrix products of a whole recurrent net; weights are one block of T",
        "tf:allow",
        work="rnn",
    ),
    _compute(
        "BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 LSTMBlockCell "
        "LSTMBlockCellGrad",
        "matrix products and gates in one kernel; T may be half, not bfloat16",
        "tf:allow",
        work="rnn",
    ),
    _keep(
        "GRUBlockCell GRUBlockCellGrad",
        "TensorFlow allows it, but its T may only be float32",
        "opdef",
        work="rnn",
    ),
    _keep(
        "FastUnsortedSegmentMax FusedSparseConvGpuV2 Mha MhaV2 Pmlp Tmlp TmlpV2 TmlpV3 "
        "VoxelMax",
        "TensorFlow allows it, but no OpDef is public that would type its ports",
        "opdef",
    ),
]

_ELEMENTWISE = [
    _follow("Add AddV2 Sub Mul BiasAdd BiasAddV1", "sums of two, products", "tf:infer"),
    _follow("AddN", "adds its inputs; few in a gradient", "tf:infer"),
    _follow("AccumulateNV2", "adds its inputs, as AddN", "definition"),
    _follow("MulNoNan", "a product; 0 wins over inf and NaN", "definition"),
    _follow(
        "Square SquaredDifference", "one product; inf from 256 in half", "tf:infer"
    ),
    _follow("RealDiv Reciprocal Inv", "a quotient; one rounding", "tf:infer"),
    _follow("Div", "RealDiv on floats", "definition"),
    _follow("DivNoNan", "a quotient; jumps to 0 where y turns 0", "definition"),
    _follow("Sqrt Rsqrt", "halves the exponent; steep only next to 0", "tf:infer"),
    _follow("SqrtGrad", "dy / 2y; a quotient", "definition"),
    _follow("Log Log1p", "compresses the range", "tf:infer", work="transcendental"),
    _keep(
        "RsqrtGrad ReciprocalGrad InvGrad",
        "y cubed or squared comes first: inf in half at y=300, result -1350 or -9",
        "measured",
    ),
    _keep(
        "FloorDiv",
        "TensorFlow infers it, but a rounded operand is off by a whole unit or more",
        "measured",
    ),
    _keep(
        "Exp Expm1",
        "inf from 12 in half; rounding of the argument is relative error of the result",
        "tf:deny",
        work="transcendental",
    ),
    _keep("Pow", "range and error grow with the exponent", "tf:deny"),
    _keep(
        "Xdivy Xlogy Xlog1py",
        "made for losses: logs and quotients of tiny probabilities",
        "definition",
        work="transcendental",
    ),
    _follow("Abs Neg", "sign bit; rounds nothing", "tf:clear"),
    _follow("Maximum Minimum ClipByValue", "selects by comparing", "tf:clear"),
    _follow("Ceil Floor Round Sign", "exact on a 16-bit operand", "tf:clear"),
    _follow(
        "Equal Greater GreaterEqual Less LessEqual NotEqual",
        "exact on 16-bit operands; a float32 operand may turn into a tie",
        "tf:clear",
    ),
]

_ACTIVATIONS = [
    _follow("Relu Relu6 Relu6Grad ReluGrad", "selects by comparing", "tf:clear"),
    _follow("LeakyRelu LeakyReluGrad", "selects, one product", "tf:infer"),
    _follow("Elu Selu", "exp of negatives only", "tf:infer", work="transcendental"),
    _follow("EluGrad SeluGrad", "selects, one product", "tf:infer"),
    _follow("Sigmoid Tanh Erf Erfc", "bounded", "tf:infer", work="transcendental"),
    _follow("SigmoidGrad TanhGrad", "products of bounded factors", "tf:infer"),
    _follow("Softplus", "linear at most", "tf:infer", work="transcendental"),
    _follow("SoftplusGrad", "dy times a sigmoid", "tf:infer", work="transcendental"),
    _follow("Softsign SoftsignGrad", "denominator at least 1", "tf:infer"),
    _follow(
        "Softmax LogSoftmax",
        "the maximum is taken off first; adds up along the last axis",
        "tf:infer",
        work="softmax",
    ),
    _keep(
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
        "log of tiny probabilities, and the head of every gradient",
        "tf:deny",
        work="softmax",
    ),
]

_STATISTICS = _words("scale offset mean variance batch_mean batch_variance")
_SAVED_2 = _words("reserve_space_1 reserve_space_2")
_SAVED_3 = (*_SAVED_2, "reserve_space_3")
_STATISTICS_GRAD = _words("scale scale_backprop offset_backprop")

_NORMALISATION = [
    _follow(
        "FusedBatchNormV2",
        "data low, statistics float32 by OpDef",
        "tf:infer",
        float32_ports=_STATISTICS + _SAVED_2,
        work="normalise",
    ),
    _follow(
        "FusedBatchNormV3 _FusedBatchNormEx",
        "data low, statistics float32",
        "tf:infer",
        float32_ports=_STATISTICS + _SAVED_3,
        work="normalise",
    ),
    _follow(
        "FusedBatchNormGradV2",
        "data low, statistics and their gradients float32",
        "tf:infer",
        float32_ports=(*_STATISTICS_GRAD, *_SAVED_3, "reserve_space_4"),
        work="normalise",
    ),
    _follow(
        "FusedBatchNormGradV3",
        "data low, statistics and their gradients float32",
        "tf:infer",
        float32_ports=(
            *_STATISTICS_GRAD,
            *_SAVED_3,
            "reserve_space_4",
            "reserve_space_5",
        ),
        work="normalise",
    ),
    _keep(
        "FusedBatchNorm FusedBatchNormGrad",
        "its T may only be float32; the later versions split data and statistics",
        "opdef",
        work="normalise",
    ),
    _follow(
        "LRN LRNGrad",
        "divides by a sum of squares next to it",
        "definition",
        work="normalise",
    ),
]

_POOLING = [
    _follow(
        "AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad",
        "mean of a window",
        "tf:infer",
        work="pool",
    ),
    _follow(
        "MaxPool MaxPool3D MaxPoolV2",
        "selects; the gradient must see the same operand, or it finds no maximum",
        "tf:clear",
        work="pool",
    ),
    _follow(
        "MaxPoolGrad MaxPoolGradV2",
        "adds the gradients of windows that overlap",
        "tf:clear",
        work="pool",
    ),
    _follow(
        "MaxPool3DGrad",
        "adds the gradients of windows that overlap; two types, which turn together",
        "tf:clear",
        attrs=("T", "TInput"),
        work="pool",
    ),
    _follow(
        "MaxPool3DGradGrad MaxPoolGradGrad MaxPoolGradGradV2",
        "selects by comparing",
        "tf:clear",
        work="pool",
    ),
    _follow(
        "MaxPoolWithArgmax MaxPoolGradWithArgmax MaxPoolGradGradWithArgmax",
        "MaxPool that hands its choice to the gradient",
        "definition",
        work="pool",
    ),
    _follow(
        "ResizeNearestNeighborGrad",
        "adds the gradients of copies",
        "tf:clear",
        work="reduce",
    ),
    _follow(
        "ResizeBilinear",
        "reads 16 bits, computes and returns float32 by OpDef",
        "tf:clear",
        float32_ports=("resized_images",),
    ),
    _follow(
        "ResizeBilinearGrad",
        "takes float32 by OpDef, adds up in float32, returns 16 bits",
        "measured",
        float32_ports=("grads",),
    ),
]

_REDUCTIONS = [
    _follow(
        "Mean Sum",
        "follows, as TensorFlow infers it with oneDNN; it denies it in half because of "
        "kernels that add up in half, which accumulates_low names",
        "tf:infer",
        work="reduce",
    ),
    _follow(
        "BiasAddGrad", "sum to one value a channel, as Sum", "tf:infer", work="reduce"
    ),
    _keep(
        "Max Min",
        "its gradient compares operand and result for equality; TensorFlow clears it, "
        "but one rounded without the other would match nowhere",
        "tf:clear",
    ),
    _follow(
        "ArgMax ArgMin TopK TopKV2",
        "selects; a float32 operand may turn into a tie",
        "tf:clear",
        work="reduce",
    ),
    _follow("Cumsum", "running sum", "definition", work="reduce"),
    _follow(
        "SegmentMean SegmentSum SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum "
        "UnsortedSegmentSum",
        "sum a segment",
        "definition",
        work="reduce",
    ),
    _follow(
        "SegmentMax UnsortedSegmentMax UnsortedSegmentMin",
        "selects by comparing",
        "definition",
        work="reduce",
    ),
    _follow("ScatterNd", "adds where indices repeat", "tf:clear", work="gather"),
    _follow(
        "TensorScatterAdd TensorScatterSub",
        "adds where indices meet",
        "definition",
        work="gather",
    ),
    _follow(
        "MirrorPadGrad",
        "folds the mirrored edge back by adding it",
        "tf:clear",
        work="copy",
    ),
    _keep(
        "L2Loss",
        "sum of squares: one value of 362 is inf in half",
        "tf:deny",
        work="reduce",
    ),
    _keep(
        "Prod",
        "TensorFlow infers it, but it rounds once a factor and leaves the range fast",
        "measured",
        work="reduce",
    ),
    _keep(
        "Cumprod",
        "rounds once a factor and leaves the range fast",
        "measured",
        work="reduce",
    ),
    _keep(
        "CumulativeLogsumexp",
        "10,000 ones end at 7.2 or 5.2 and not at 10.2",
        "measured",
        work="reduce",
    ),
]

_MOVES = [
    _move(
        "Identity PreventGradient StopGradient EnsureShape ExpandDims Reshape Squeeze",
        "the same bytes",
        "tf:clear",
        work="free",
    ),
    _move(
        "IdentityN",
        "the same bytes; its list may mix types, of which the float32 ones may turn",
        "tf:clear",
        work="free",
    ),
    _keep(
        "Enter Exit Merge NextIteration Switch",
        "TensorFlow clears it, but around a loop the type must agree, and a cast "
        "between NextIteration and Merge would be a cycle",
        "tf:clear",
    ),
    _move("Snapshot", "a copy", "tf:clear", work="copy"),
    _move("DeepCopy", "a copy", "definition", work="copy"),
    _move(
        "BatchToSpace BatchToSpaceND DepthToSpace Reverse ReverseSequence ReverseV2 "
        "SpaceToBatch SpaceToBatchND SpaceToDepth Transpose",
        "reorders, crops or pads with 0",
        "tf:clear",
        work="copy",
    ),
    _move("Roll", "reorders", "definition", work="copy"),
    _move(
        "Concat ConcatV2 Pack DynamicStitch",
        "joins; all inputs share the type",
        "tf:clear",
        work="copy",
    ),
    _move("ParallelDynamicStitch ParallelConcat", "joins", "definition", work="copy"),
    _move(
        "Split SplitV Unpack DynamicPartition Slice StridedSlice",
        "cuts",
        "tf:clear",
        work="copy",
    ),
    _move("StridedSliceGrad", "places into zeros", "tf:clear", work="copy"),
    _move(
        "Pad PadV2 MirrorPad",
        "places into a constant or mirror",
        "tf:clear",
        work="copy",
    ),
    _move("BroadcastTo Tile ResizeNearestNeighbor", "repeats", "tf:clear", work="copy"),
    _move("Fill", "repeats one value", "tf:clear", work="copy"),
    _move("OneHot", "places two values", "tf:clear", work="copy"),
    _move("OnesLike ZerosLike", "a constant, exact", "tf:clear", work="copy"),
    _move("Select SelectV2", "selects by a bool operand", "tf:clear"),
    _move(
        "Gather GatherNd GatherV2",
        "copies the rows it is told to",
        "tf:clear",
        attrs=("Tparams",),
        work="gather",
    ),
    _move("TensorScatterUpdate", "overwrites rows", "definition", work="gather"),
    _move(
        "MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 "
        "MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV3",
        "copies or blanks diagonals",
        "definition",
        work="copy",
    ),
    _move(
        "ExtractImagePatches ExtractVolumePatches", "cuts", "definition", work="copy"
    ),
]

_LISTS = [
    _list(
        "TensorListConcatLists TensorListGetItem TensorListPopBack TensorListPushBack "
        "TensorListSetItem",
        why="hands on tensors of the list",
        work="free",
    ),
    _list(
        "TensorListConcat TensorListConcatV2 TensorListFromTensor TensorListGather "
        "TensorListPushBackBatch TensorListScatter TensorListScatterIntoExistingList "
        "TensorListScatterV2 TensorListSplit TensorListStack",
        why="copies between tensors and the list",
        work="copy",
    ),
    _move(
        "EmptyTensorList TensorListReserve",
        "makes the list, and so its element type",
        "definition",
        attrs=("element_dtype",),
        work="free",
        same_list=True,
    ),
    _move(
        "TensorListElementShape TensorListLength TensorListResize",
        "works on a list of any element type",
        "definition",
        attrs=(),
        work="free",
        same_list=True,
    ),
]

_EXCLUDED = [
    _follow(
        "Rank Shape ShapeN Size",
        "reads no value; may read the shape off the 16-bit tensor",
        "tf:clear",
        work="free",
    ),
    _keep(
        "IsFinite IsInf IsNan",
        "TensorFlow clears it, but it asks about the range, which a cast narrows",
        "definition",
    ),
    _keep(
        "CheckNumerics",
        "TensorFlow clears it, but it must not report what our own cast overflows",
        "definition",
    ),
    _keep(
        "Where",
        "TensorFlow clears it, but a tiny value that turns 0 changes a shape",
        "definition",
        work="reduce",
    ),
    _keep(
        "ResourceGather ResourceGatherNd",
        "its type is the variable's; only the result may be cast",
        "opdef",
        attrs=("dtype",),
        work="gather",
    ),
    _keep(
        "StatelessWhile While",
        "TensorFlow clears it; here a loop turns with its body, never as one node",
        "definition",
        work="free",
    ),
    _keep(
        "SaveV2",
        "a checkpoint keeps its types",
        "tf:deny",
        attrs=("dtypes",),
        work="copy",
    ),
]

_FAMILIES = (
    *(_PRODUCTS, _ELEMENTWISE, _ACTIVATIONS, _NORMALISATION, _POOLING, _REDUCTIONS),
    *(_MOVES, _LISTS, _EXCLUDED),
)


def by_name(rows: Iterable[Row]) -> Mapping[str, Row]:
    """Returns the rows by op name, read-only.

    Raises:
      AmpError: an op that has two rows.
    """
    table: dict[str, Row] = {}
    for row in rows:
        if row.op in table:
            raise AmpError(
                f"{row.op} has two rows",
                where="op_table",
                allowed="one row an op",
                remedy="delete one of the rows",
            )
        table[row.op] = row
    return MappingProxyType(table)


_groups = itertools.chain.from_iterable(_FAMILIES)
TABLE: Mapping[str, Row] = by_name(itertools.chain.from_iterable(_groups))
