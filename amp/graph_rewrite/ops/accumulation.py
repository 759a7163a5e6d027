"""How TensorFlow's kernels add up: how many terms, and in which types.

Facts of which rows of the op table are made, with their sources; no row lives here.
"""

from __future__ import annotations

import enum


class Terms(enum.Enum):
    """How many terms an op adds up for an element of its output."""

    FEW = "none, or two or three, or their errors average out"
    REDUCED = "as many input elements as there are to an output element"
    ALONG = "those before it along the axis that the second input gives"
    INPUTS = "one of each input"
    WINDOW = "those in a window of `ksize`"
    WINDOWS = "one of each window of `ksize` that it is in, `strides` apart"
    NEIGHBOURS = "those at most `depth_radius` away, on both sides"
    SCATTERED = "up to as many as there are indices, as all may be the same"
    PRODUCTS = "products, half as many as its multiplies and adds"


# The 16-bit types in which a kernel accumulates sums (`Row.accumulates_low`).
#
# Measured on CPUs, TensorFlow 2.21, against the same kernel in float32 on the same
# 16-bit values: ones, uniform values from 0.5 to 1.5 and normal values, 4 to 10,000 of
# them along the reduction. A type is listed if the error exceeds that of one rounding
# of the float32 sum (by a factor that grows as the root of the number of terms, as that
# of adding one by one in 16 bits does), or a partial sum exceeds 65504.
# - One by one: BiasAddGrad (bfloat16), Cumsum, the scatters, UnsortedSegmentSum,
#   SegmentMean, ResizeNearestNeighborGrad, the gradients of pooling, pooling without
#   oneDNN, depthwise convolutions, Einsum to a scalar or a row. Stuck at 256 (bfloat16)
#   or 2048 (float16).
# - In blocks, some 3 times less coarse: AddN (of eight), SegmentSum, Sum and Mean in
#   float16 over an outer axis; over the last axis in a tree.
# - Blocks rounded one by one: Conv3D, the gradients of convolutions, and Einsum as a
#   product (10,000 ones give 6656 or 3328 in bfloat16; 3 to 14 units in float16).
# - Softmax and LogSoftmax in float16 add positive values in a tree: 2 to 3 roundings'
#   error, whatever their number, until the sum of the exponentials passes 65504
#   (131,072 equal logits give 0 and -inf). Mean overflows alike. With oneDNN and
#   AVX512-FP16, Softmax adds in float32; not counted, as no other float16 kernel does.
# MatMul, BatchMatMul*, Conv2D, Conv, L2Loss, SparseSegment*, ResizeBilinearGrad and the
# statistics of FusedBatchNorm* accumulate in float32. Types without a kernel are left
# out.
#
# With oneDNN and a CPU that has arithmetic in a type (`Row.native_accumulates_low`):
# products and AvgPool in bfloat16 accumulate in float32, as measured with AVX512-BF16;
# oneDNN's float16 kernels, which are registered for the same products, are taken to be
# alike. Gradients of pooling do not, nor do ops for which oneDNN has no kernel.
#
# Under XLA (`Row.xla_accumulates_low`), measured on a CPU: AddN and the scatters add
# one by one in the type. Reductions, running sums and products accumulate in float32.
#
# For GPU kernels (`Row.gpu_accumulates_low`), by TensorFlow's source; not measured:
# - Sum in float16: per thread, warp and block in the type of its input; over an outer
#   axis 32 partial sums are added one by one. In bfloat16 it converts to float32 first,
#   as Mean does in both types (the specializations of ReduceFunctor in
#   reduction_gpu_kernels.cu.h, a header of TensorFlow 2.21).
# - BiasAddGrad: in float32 within a block, at least in float16, and by an atomic
#   addition in the type for each block (bias_op_gpu.cu.cc, of no known version). It is
#   not listed until it is measured how many blocks there are for a channel.
# - AddN: one by one, in Eigen's expression of the type.
# - ScatterNd, TensorScatter*, UnsortedSegmentSum, SegmentSum and SegmentMean,
#   ResizeNearestNeighborGrad: atomic additions to an output of the type.
# - Cumsum: a scan in the type.
FLOAT16 = ("float16",)
BFLOAT16 = ("bfloat16",)
BOTH = ("float16", "bfloat16")
