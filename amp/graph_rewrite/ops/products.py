"""Rows of the op table: matrix products, convolutions and recurrent kernels.

Propagation of 16 bits starts at these. Facts only; nothing is decided here.
"""

from __future__ import annotations

from amp.graph_rewrite.ops.accumulation import BOTH, FLOAT16, Terms
from amp.graph_rewrite.ops.row import (
    Kind,
    Weights,
    compute,
    keep,
    structural,
)

PRODUCTS = (
    compute("MatMul", "matrix product", "tf:allow", work="matmul"),
    compute(
        "BatchMatMul BatchMatMulV2", "matrix product", "tf:allow", work="batch_matmul"
    ),
    compute(
        "BatchMatMulV3",
        "BatchMatMulV2 with a type for each operand, which turn together",
        "definition",
        attrs=("Ta", "Tb", "Tout"),
        work="batch_matmul",
    ),
    compute(
        "Einsum",
        "matrix products by equation",
        "tf:allow",
        work="einsum",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute("Conv2D", "convolution", "tf:allow", work="conv"),
    compute(
        "Conv3D",
        "convolution",
        "tf:allow",
        work="conv",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute(
        "FusedPadConv2D",
        "convolution that pads",
        "tf:allow",
        work="conv",
        weights=Weights((2,)),
        terms=Terms.PRODUCTS,
        accumulates_low=FLOAT16,
    ),
    compute("Conv", "Conv2D or Conv3D, by rank", "definition", work="conv"),
    compute(
        "FusedConv2DBiasActivation",
        "convolution with bias; the half kernel takes a half bias; no OpDef here",
        "tf:allow",
        attrs=("T", "Tbias"),
        float32_ports=("conv_input_scale", "side_input_scale"),
        work="conv",
    ),
    compute(
        "Conv2DBackpropInput Conv3DBackpropInputV2",
        "gradient of a convolution, and the transposed convolution",
        "tf:allow",
        work="conv_grad_input",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute(
        "Conv3DBackpropInput",
        "gradient of a convolution, and the transposed convolution",
        "tf:allow",
        work="conv_grad_input",
    ),
    compute(
        "Conv2DBackpropFilter Conv3DBackpropFilterV2",
        "gradient of a convolution",
        "tf:allow",
        work="conv_grad_filter",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute(
        "Conv3DBackpropFilter",
        "gradient of a convolution",
        "tf:allow",
        work="conv_grad_filter",
    ),
    compute(
        "DepthwiseConv2dNativeBackpropInput",
        "convolution a channel; bound by bytes, which halve",
        "tf:allow",
        work="depthwise_grad_input",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute(
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter",
        "convolution a channel; bound by bytes, which halve",
        "tf:allow",
        work="depthwise",
        terms=Terms.PRODUCTS,
        accumulates_low=BOTH,
        native_accumulates_low=(),
    ),
    compute(
        "CudnnRNN CudnnRNNV2 CudnnRNNV3",
        "matrix products of a whole recurrent net; weights are one block of T",
        "tf:allow",
        work="rnn",
        weights=Weights((3,)),
        opaque=("reserve_space",),
    ),
    compute(
        "CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3",
        "matrix products of a whole recurrent net; weights are one block of T",
        "tf:allow",
        work="rnn",
        weights=Weights((3,), products=2),
        opaque=("reserve_space",),
    ),
    compute(
        "BlockLSTM BlockLSTMV2",
        "matrix products and gates in one kernel; T may be half, not bfloat16",
        "tf:allow",
        work="rnn",
        weights=Weights((4,), data=1),
    ),
    compute(
        "LSTMBlockCell",
        "matrix product and gates in one kernel; T may be half, not bfloat16",
        "tf:allow",
        work="rnn",
        weights=Weights((3,)),
    ),
    compute(
        "LSTMBlockCellGrad",
        "gates in one kernel; its products are MatMuls; T may be half, not bfloat16",
        "tf:allow",
        work="rnn",
        weights=Weights(()),
    ),
    compute(
        "BlockLSTMGrad BlockLSTMGradV2",
        "matrix products and gates in one kernel; T may be half, not bfloat16",
        "tf:allow",
        work="rnn",
        weights=Weights((4,), data=1, products=2),
        terms=Terms.PRODUCTS,
        accumulates_low=FLOAT16,
    ),
    keep(
        "GRUBlockCell GRUBlockCellGrad",
        "TensorFlow allows it, but its T may only be float32",
        "opdef",
        work="rnn",
        weights=Weights((2, 3)),
    ),
    keep(
        "Cholesky CholeskyGrad MatrixInverse MatrixDeterminant LogMatrixDeterminant "
        "MatrixSolve MatrixSolveLs MatrixTriangularSolve BandedTriangularSolve "
        "TridiagonalSolve MatrixSquareRoot Lu Qr Svd SelfAdjointEigV2 "
        "Eig",
        "the condition number of a matrix has no bound",
        "definition",
        kind=Kind.SOLVE,
    ),
    keep(
        "FastUnsortedSegmentMax FusedSparseConvGpuV2 Mha MhaV2 Pmlp Tmlp TmlpV2 "
        "TmlpV3 VoxelMax",
        "TensorFlow allows it, but no OpDef is public that would type its ports",
        "opdef",
    ),
    structural(
        "FusedResizeAndPadConv2D",
        "a convolution that resizes and pads",
        work="conv",
        weights=Weights((3,)),
    ),
)
