"""`degrees`: what the tables say of an operation is what its kernel does.

Every row is measured: results of what came in and of 4 times it. Powers of 4 change no
significand, but where a kernel works with logarithms or angles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from amp.loss_scaling import degrees, homogeneity

R = tf.raw_ops
S = np.float32(4.0)
# Symmetric, with positive eigenvalues that are apart; no value is whole, or near one.
G = (np.diag([2.3, 1.6, 1.1, 0.7]) + 0.15 * np.cos(np.arange(4.0))).astype(np.float32)
G = (G + G.T) / 2
X = np.linspace(0.2, 1.7, 16, dtype=np.float32).reshape(4, 4)
ONE_IMAGE, ONE_VOLUME = (1, 4, 4, 1), (1, 2, 2, 4, 1)
IDS, NONE_OF_IT = np.array([0, 0, 1, 2]), np.float32(0.0)
VALID_2D = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
VALID_3D = {"ksize": [1, 1, 2, 2, 1], "strides": [1] * 5, "padding": "VALID"}
CONV_2D = {"strides": [1, 1, 1, 1], "padding": "SAME"}
CONV_3D = {"strides": [1] * 5, "padding": "SAME"}
KERNEL_2D, KERNEL_3D = np.ones((2, 2, 1, 1), "f"), np.ones((1, 2, 2, 1, 1), "f")


def image(g: Any) -> tf.Tensor:
    return tf.reshape(g, ONE_IMAGE)


def volume(g: Any) -> tf.Tensor:
    return tf.reshape(g, ONE_VOLUME)


def listed(g: Any) -> tf.Tensor:
    return R.TensorListFromTensor(tensor=g, element_shape=[4])


def as_tensor(handle: tf.Tensor) -> tf.Tensor:
    return R.TensorListStack(
        input_handle=handle, element_shape=[4], element_dtype=tf.float32
    )


def pooled(name: str, over: Callable[[Any], tf.Tensor], how: Any) -> Any:
    """The gradient of a largest value, by an incoming one that is spread."""

    def gradient(g: Any) -> Any:
        top = (R.MaxPool if over is image else R.MaxPool3D)(input=over(X), **how)
        incoming = tf.ones_like(top) * tf.reduce_sum(g)
        function = getattr(R, name)
        return function(orig_input=over(X), orig_output=top, grad=incoming, **how)

    return gradient


def onto(zeros: Callable[[Any], tf.Tensor]) -> Callable[[Any], tf.Tensor]:
    """A sum with zeros of a size that TensorFlow does not know, nor takes from it."""

    def added(g: Any) -> tf.Tensor:
        like = tf.compat.v1.placeholder_with_default(X, [None, None])
        return R.AddV2(x=g, y=zeros(like))

    return added


# Operations that read more than one tensor; the others are called with it alone.
CALLS: dict[str, Callable[[Any], Any]] = {
    "AvgPool": lambda g: R.AvgPool(value=image(g), **VALID_2D),
    "AvgPool3D": lambda g: R.AvgPool3D(input=volume(g), **VALID_3D),
    "BatchToSpace": lambda g: R.BatchToSpace(
        input=tf.reshape(g, (4, 2, 2, 1)), crops=[[0, 0], [0, 0]], block_size=2
    ),
    "BatchToSpaceND": lambda g: R.BatchToSpaceND(
        input=g, block_shape=[2], crops=[[0, 0]]
    ),
    "BroadcastTo": lambda g: R.BroadcastTo(input=g, shape=[2, 4, 4]),
    "Cast": lambda g: R.Cast(x=g, DstT=tf.float64),
    "CheckNumerics": lambda g: R.CheckNumerics(tensor=g, message=""),
    "CheckNumericsV2": lambda g: R.CheckNumericsV2(tensor=g, message=""),
    "DepthToSpace": lambda g: R.DepthToSpace(
        input=tf.reshape(g, (1, 2, 2, 4)), block_size=2
    ),
    "DynamicPartition": lambda g: R.DynamicPartition(
        data=g, partitions=[0, 1, 0, 1], num_partitions=2
    ),
    "EnsureShape": lambda g: R.EnsureShape(input=g, shape=[4, 4]),
    "EuclideanNorm": lambda g: R.EuclideanNorm(input=g, axis=0),
    "ExpandDims": lambda g: R.ExpandDims(input=g, axis=0),
    "ExtractImagePatches": lambda g: R.ExtractImagePatches(
        images=image(g),
        ksizes=[1, 2, 2, 1],
        strides=[1, 1, 1, 1],
        rates=[1, 1, 1, 1],
        padding="VALID",
    ),
    "ExtractVolumePatches": lambda g: R.ExtractVolumePatches(
        input=volume(g), ksizes=[1, 1, 2, 2, 1], strides=[1] * 5, padding="VALID"
    ),
    **{
        name: lambda g, name=name: getattr(R, name)(
            input=tf.cast(tf.reshape(g, (1, 4, 4)), tf.complex64)
        )
        for name in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
    },
    **{
        f"{how}FFT{rank}": lambda g, how=how, rank=rank: getattr(R, f"{how}FFT{rank}")(
            input=tf.reshape(g, (1, 4, 4))
            if how == "R"
            else tf.cast(tf.reshape(g, (1, 4, 4)), tf.complex64),
            fft_length=[4] * int(rank.strip("D") or 1),
        )
        for how in ("R", "IR")
        for rank in ("", "2D", "3D")
        if rank != "3D"
    },
    "RFFT3D": lambda g: R.RFFT3D(input=tf.reshape(g, (1, 4, 4)), fft_length=[1, 4, 4]),
    "IRFFT3D": lambda g: R.IRFFT3D(
        input=tf.cast(tf.reshape(g, (1, 4, 4)), tf.complex64), fft_length=[1, 4, 4]
    ),
    "Fill": lambda g: R.Fill(dims=[3], value=g[0, 0]),
    "GatherNd": lambda g: R.GatherNd(params=g, indices=[[1, 2]]),
    "GatherV2": lambda g: R.GatherV2(params=g, indices=[2, 1], axis=0),
    "Imag": lambda g: R.Imag(input=tf.complex(g, 2.0 * g)),
    "MatrixBandPart": lambda g: R.MatrixBandPart(input=g, num_lower=0, num_upper=1),
    **{
        name: lambda g, name=name: getattr(R, name)(input=g, axis=0)
        for name in ("Max", "Mean", "Min", "Sum")
    },
    "MaxPool": lambda g: R.MaxPool(input=image(g), **VALID_2D),
    "MaxPool3D": lambda g: R.MaxPool3D(input=volume(g), **VALID_3D),
    "MaxPoolV2": lambda g: R.MaxPoolV2(input=image(g), **VALID_2D),
    "MaxPoolWithArgmax": lambda g: R.MaxPoolWithArgmax(input=image(g), **VALID_2D),
    "MirrorPad": lambda g: R.MirrorPad(
        input=g, paddings=[[1, 0], [0, 0]], mode="REFLECT"
    ),
    "NthElement": lambda g: R.NthElement(input=g, n=1),
    "Pad": lambda g: R.Pad(input=g, paddings=[[1, 0], [0, 0]]),
    "RandomShuffle": lambda g: R.RandomShuffle(value=g, seed=1, seed2=2),
    "Real": lambda g: R.Real(input=tf.complex(g, 2.0 * g)),
    "Reshape": lambda g: R.Reshape(tensor=g, shape=[16]),
    **{
        name: lambda g, name=name: getattr(R, name)(images=image(g), size=[6, 6])
        for name in (
            "ResizeArea",
            "ResizeBicubic",
            "ResizeBilinear",
            "ResizeNearestNeighbor",
        )
    },
    "ReverseSequence": lambda g: R.ReverseSequence(
        input=g, seq_lengths=[1, 2, 3, 4], seq_dim=1
    ),
    "ReverseV2": lambda g: R.ReverseV2(tensor=g, axis=[0]),
    "Roll": lambda g: R.Roll(input=g, shift=1, axis=0),
    "Slice": lambda g: R.Slice(input=g, begin=[0, 1], size=[2, 2]),
    "SpaceToBatch": lambda g: R.SpaceToBatch(
        input=image(g), paddings=[[0, 0], [0, 0]], block_size=2
    ),
    "SpaceToBatchND": lambda g: R.SpaceToBatchND(
        input=g, block_shape=[2], paddings=[[0, 0]]
    ),
    "SpaceToDepth": lambda g: R.SpaceToDepth(input=image(g), block_size=2),
    "Split": lambda g: R.Split(axis=0, value=g, num_split=2),
    "SplitV": lambda g: R.SplitV(value=g, size_splits=[1, 3], axis=0, num_split=2),
    "StridedSlice": lambda g: R.StridedSlice(input=g, begin=[0], end=[2], strides=[1]),
    "StridedSliceGrad": lambda g: R.StridedSliceGrad(
        shape=[8, 4], begin=[0], end=[4], strides=[1], dy=g
    ),
    "TensorListConcatV2": lambda g: R.TensorListConcatV2(
        input_handle=listed(g),
        element_shape=[4],
        leading_dims=tf.constant([], tf.int64),
        element_dtype=tf.float32,
    ),
    "TensorListFromTensor": lambda g: as_tensor(listed(g)),
    "TensorListGather": lambda g: R.TensorListGather(
        input_handle=listed(g),
        indices=[1],
        element_shape=[4],
        element_dtype=tf.float32,
    ),
    "TensorListGetItem": lambda g: R.TensorListGetItem(
        input_handle=listed(g), index=1, element_shape=[4], element_dtype=tf.float32
    ),
    "TensorListPopBack": lambda g: (
        R.TensorListPopBack(
            input_handle=listed(g), element_shape=[4], element_dtype=tf.float32
        ).tensor
    ),
    "TensorListResize": lambda g: as_tensor(
        R.TensorListResize(input_handle=listed(g), size=2)
    ),
    "TensorListStack": lambda g: as_tensor(listed(g)),
    "TensorListPushBack": lambda g: as_tensor(
        R.TensorListPushBack(input_handle=listed(g), tensor=2.0 * g[0])
    ),
    "TensorListSetItem": lambda g: as_tensor(
        R.TensorListSetItem(input_handle=listed(g), index=1, item=2.0 * g[0])
    ),
    "Tile": lambda g: R.Tile(input=g, multiples=[2, 1]),
    "TopKV2": lambda g: R.TopKV2(input=g, k=2),
    "Transpose": lambda g: R.Transpose(x=g, perm=[1, 0]),
    "Unpack": lambda g: R.Unpack(value=g, num=4),
    "ArgMax": lambda g: R.ArgMax(input=g, dimension=1),
    "ArgMin": lambda g: R.ArgMin(input=g, dimension=1),
    "Angle": lambda g: R.Angle(input=tf.complex(g, 2.0 * g)),
    "Conj": lambda g: R.Conj(input=tf.complex(g, 2.0 * g)),
    "ConjugateTranspose": lambda g: R.ConjugateTranspose(x=g, perm=[1, 0]),
    "Sqrt": lambda g: R.Sqrt(x=R.Abs(x=g)),
    "Rsqrt": lambda g: R.Rsqrt(x=R.Abs(x=g)),
    "TensorListElementShape": lambda g: R.TensorListElementShape(
        input_handle=listed(g), shape_type=tf.int32
    ),
    "ComplexAbs": lambda g: R.ComplexAbs(x=tf.complex(g, 2.0 * g)),
    # Of several results each.
    "Eig": lambda g: tf.abs(R.Eig(input=g, Tout=tf.complex64).e),
    # Products, ratios, solutions.
    **{
        name: lambda g, name=name: getattr(R, name)(x=g, y=X)
        for name in ("BatchMatMul", "BatchMatMulV2", "Mul", "MulNoNan")
    },
    "BatchMatMulV3": lambda g: R.BatchMatMulV3(x=X, y=g, Tout=tf.float32),
    "Conv2D": lambda g: R.Conv2D(input=image(g), filter=KERNEL_2D, **CONV_2D),
    "Conv2DBackpropFilter": lambda g: R.Conv2DBackpropFilter(
        input=image(X), filter_sizes=[2, 2, 1, 1], out_backprop=image(g), **CONV_2D
    ),
    "Conv2DBackpropInput": lambda g: R.Conv2DBackpropInput(
        input_sizes=ONE_IMAGE, filter=KERNEL_2D, out_backprop=image(g), **CONV_2D
    ),
    "Conv3D": lambda g: R.Conv3D(input=volume(g), filter=KERNEL_3D, **CONV_3D),
    "Conv3DBackpropFilterV2": lambda g: R.Conv3DBackpropFilterV2(
        input=volume(X), filter_sizes=KERNEL_3D.shape, out_backprop=volume(g), **CONV_3D
    ),
    "Conv3DBackpropInputV2": lambda g: R.Conv3DBackpropInputV2(
        input_sizes=ONE_VOLUME, filter=KERNEL_3D, out_backprop=volume(g), **CONV_3D
    ),
    "Cross": lambda g: R.Cross(a=g[:, :3], b=X[:, :3]),
    "DepthwiseConv2dNative": lambda g: R.DepthwiseConv2dNative(
        input=image(g), filter=KERNEL_2D, **CONV_2D
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda g: (
        R.DepthwiseConv2dNativeBackpropFilter(
            input=image(X), filter_sizes=[2, 2, 1, 1], out_backprop=image(g), **CONV_2D
        )
    ),
    "DepthwiseConv2dNativeBackpropInput": lambda g: (
        R.DepthwiseConv2dNativeBackpropInput(
            input_sizes=ONE_IMAGE, filter=KERNEL_2D, out_backprop=image(g), **CONV_2D
        )
    ),
    "Einsum": lambda g: R.Einsum(inputs=[g, X], equation="ij,jk->ik"),
    "MatMul": lambda g: R.MatMul(a=X, b=g),
    "SparseMatMul": lambda g: R.SparseMatMul(a=g, b=X),
    "SparseTensorDenseMatMul": lambda g: R.SparseTensorDenseMatMul(
        a_indices=tf.constant([[0, 1], [2, 3]], tf.int64),
        a_values=g[0, :2],
        a_shape=tf.constant([4, 4], tf.int64),
        b=X,
    ),
    **{
        name: lambda g, name=name: getattr(R, name)(x=X, y=g)
        for name in ("Div", "DivNoNan", "RealDiv", "Xdivy")
    },
    "MatrixSolve": lambda g: R.MatrixSolve(matrix=g, rhs=X),
    "MatrixTriangularSolve": lambda g: R.MatrixTriangularSolve(matrix=g, rhs=X),
    "TridiagonalSolve": lambda g: R.TridiagonalSolve(diagonals=G[:3], rhs=g),
    # Of several of one degree.
    "AccumulateNV2": lambda g: R.AccumulateNV2(inputs=[g, 2.0 * g], shape=[4, 4]),
    "AddN": lambda g: R.AddN(inputs=[g, 2.0 * g]),
    **{
        name: lambda g, name=name: getattr(R, name)(x=g, y=0.4 * tf.reverse(g, [0]))
        for name in (
            *("Add", "AddV2", "FloorMod", "Maximum", "Minimum", "Mod", "Sub"),
            *("Atan2", "Equal", "FloorDiv", "Greater", "GreaterEqual", "Less"),
            *("LessEqual", "NotEqual", "TruncateDiv", "TruncateMod"),
            "SquaredDifference",
        )
    },
    "ClipByValue": lambda g: R.ClipByValue(
        t=g, clip_value_min=0.0 * g[0, 0], clip_value_max=g[1, 1]
    ),
    "Complex": lambda g: R.Complex(real=g, imag=2.0 * g),
    "ConcatV2": lambda g: R.ConcatV2(values=[g, 2.0 * g], axis=0),
    **{
        name: lambda g, name=name: getattr(R, name)(
            indices=[[0, 2], [1, 3]], data=[g[:2], g[2:]]
        )
        for name in ("DynamicStitch", "ParallelDynamicStitch")
    },
    "FakeQuantWithMinMaxVars": lambda g: R.FakeQuantWithMinMaxVars(
        inputs=g, min=-tf.reduce_max(g), max=tf.reduce_max(g)
    ),
    "FakeQuantWithMinMaxVarsPerChannel": lambda g: R.FakeQuantWithMinMaxVarsPerChannel(
        inputs=g, min=-tf.reduce_max(g, 0), max=tf.reduce_max(g, 0)
    ),
    "MatrixDiagPartV2": lambda g: R.MatrixDiagPartV2(
        input=g, k=[0, 1], padding_value=NONE_OF_IT
    ),
    "MatrixDiagPartV3": lambda g: R.MatrixDiagPartV3(
        input=g, k=[0, 1], padding_value=g[1, 1]
    ),
    **{
        name: lambda g, name=name: getattr(R, name)(
            diagonal=g[0], k=0, num_rows=4, num_cols=4, padding_value=NONE_OF_IT
        )
        for name in ("MatrixDiagV2", "MatrixDiagV3")
    },
    "MatrixSetDiag": lambda g: R.MatrixSetDiag(input=g, diagonal=2.0 * g[0]),
    **{
        name: lambda g, name=name: getattr(R, name)(input=g, diagonal=2.0 * g[0], k=0)
        for name in ("MatrixSetDiagV2", "MatrixSetDiagV3")
    },
    "OneHot": lambda g: R.OneHot(
        indices=[0, 2], depth=3, on_value=g[0, 0], off_value=NONE_OF_IT
    ),
    "Pack": lambda g: R.Pack(values=[g, 2.0 * g]),
    "PadV2": lambda g: R.PadV2(
        input=g, paddings=[[1, 0], [0, 0]], constant_values=g[1, 1]
    ),
    "SparseToDense": lambda g: R.SparseToDense(
        sparse_indices=[1],
        output_shape=[3],
        sparse_values=g[0, :1],
        default_value=NONE_OF_IT,
    ),
    **{
        f"TensorScatter{how}": lambda g, how=how: getattr(R, f"TensorScatter{how}")(
            tensor=g, indices=[[1]], updates=2.0 * g[:1]
        )
        for how in ("Add", "Max", "Min", "Sub", "Update")
    },
    # Compared.
    "HistogramFixedWidth": lambda g: R.HistogramFixedWidth(
        values=g, value_range=[0.0 * g[0, 0], tf.reduce_max(g)], nbins=4
    ),
    **{
        name: lambda g, name=name: getattr(R, name)(
            sorted_inputs=tf.sort(g), values=tf.reverse(g, [0])
        )
        for name in ("LowerBound", "UpperBound")
    },
    # Linear in one, others are numbers.
    "Cumsum": lambda g: R.Cumsum(x=g, axis=0),
    "FusedBatchNormGradV3": lambda g: R.FusedBatchNormGradV3(
        y_backprop=image(g),
        x=image(X),
        scale=[1.5],
        reserve_space_1=[0.9],
        reserve_space_2=[0.3],
        reserve_space_3=[0.1],
        is_training=True,
    )[:3],
    **{
        f"{name}Grad": lambda g, name=name: getattr(R, f"{name}Grad")(
            gradients=g, features=X
        )
        for name in ("LeakyRelu", "Relu", "Relu6", "Softplus", "Softsign")
    },
    **{
        f"{name}Grad": lambda g, name=name: getattr(R, f"{name}Grad")(
            gradients=g, outputs=X
        )
        for name in ("Elu", "Selu")
    },
    **{
        f"Resize{name}Grad": lambda g, name=name: getattr(R, f"Resize{name}Grad")(
            grads=image(g), original_image=tf.ones([1, 8, 8, 1])
        )
        for name in ("Bicubic", "Bilinear")
    },
    "ResizeNearestNeighborGrad": lambda g: R.ResizeNearestNeighborGrad(
        grads=image(g), size=[8, 8]
    ),
    **{
        f"Segment{how}": lambda g, how=how: getattr(R, f"Segment{how}")(
            data=g, segment_ids=IDS
        )
        for how in ("Max", "Mean", "Min", "Sum")
    },
    "UnsortedSegmentSum": lambda g: R.UnsortedSegmentSum(
        data=g, segment_ids=IDS, num_segments=3
    ),
    "Xlog1py": lambda g: R.Xlog1py(x=g, y=X),
    "Xlogy": lambda g: R.Xlogy(x=g, y=X),
    "AvgPool3DGrad": lambda g: R.AvgPool3DGrad(
        orig_input_shape=(1, 2, 3, 5, 1), grad=volume(g), **VALID_3D
    ),
    "AvgPoolGrad": lambda g: R.AvgPoolGrad(
        orig_input_shape=(1, 5, 5, 1), grad=image(g), **VALID_2D
    ),
    "ScatterNd": lambda g: R.ScatterNd(
        indices=[[1], [0], [3], [2]], updates=g, shape=[5, 4]
    ),
    **{
        f"{name}Grad": lambda g, name=name: getattr(R, f"{name}Grad")(y=X, dy=g)
        for name in ("Inv", "Reciprocal", "Rsqrt", "Sigmoid", "Sqrt", "Tanh")
    },
    "DenseBincount": lambda g: R.DenseBincount(
        input=[0, 2, 1, 1], size=3, weights=g[0]
    ),
    "MaxPoolGrad": pooled("MaxPoolGrad", image, VALID_2D),
    "MaxPoolGradV2": pooled("MaxPoolGradV2", image, VALID_2D),
    "MaxPool3DGrad": pooled("MaxPool3DGrad", volume, VALID_3D),
    # Choices, and what is of a case.
    "Select": lambda g: R.Select(condition=X > 1.0, x=g, y=2.0 * g),
    "SelectV2": lambda g: R.SelectV2(condition=g > 2.0 * g, t=g, e=2.0 * g),
    "ShapeN": lambda g: R.ShapeN(input=[g, 2.0 * g]),
    "IdentityN": lambda g: R.IdentityN(input=[g, X, g * g]),
    "ZerosLike": lambda g: R.ZerosLike(x=g),
    "EmptyTensorList": lambda g: as_tensor(
        R.EmptyTensorList(
            element_shape=[4], max_num_elements=3, element_dtype=tf.float32
        )
    ),
    "TensorListReserve": lambda g: as_tensor(
        R.TensorListReserve(element_shape=[4], num_elements=3, element_dtype=tf.float32)
    ),
    "MatrixDeterminant": lambda g: R.MatrixDeterminant(input=g),
    "Pow": lambda g: R.Pow(x=R.Abs(x=g), y=np.float32(1.5)),
    "Prod": lambda g: R.Prod(input=g, axis=0),
    "QuantizeAndDequantizeV2": lambda g: R.QuantizeAndDequantizeV2(
        input=g, input_min=0.0, input_max=0.0
    ),
    **{
        name: lambda g, name=name: getattr(R, name)(
            input=g, input_min=0.0, input_max=0.0, num_bits=8, range_given=False
        )
        for name in ("QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
    },
    # What bends.
    "ApproximateEqual": lambda g: R.ApproximateEqual(x=g, y=0.95 * g, tolerance=0.2),
    "Betainc": lambda g: R.Betainc(a=X, b=X, x=g / 10.0),
    "Bucketize": lambda g: R.Bucketize(input=g, boundaries=[1.0, 2.0]),
    "Cumprod": lambda g: R.Cumprod(x=g, axis=0),
    "CumulativeLogsumexp": lambda g: R.CumulativeLogsumexp(x=g, axis=0),
    "Igamma": lambda g: R.Igamma(a=X, x=g),
    "Igammac": lambda g: R.Igammac(a=X, x=g),
    "LRN": lambda g: R.LRN(input=image(g)),
    "MatrixLogarithm": lambda g: R.MatrixLogarithm(input=tf.cast(g, tf.complex64)),
    "Multinomial": lambda g: R.Multinomial(logits=g, num_samples=99, seed=1, seed2=2),
    "StatelessMultinomial": lambda g: R.StatelessMultinomial(
        logits=g, num_samples=99, seed=[1, 2]
    ),
    "Polygamma": lambda g: R.Polygamma(a=np.float32(2.0), x=g),
    "SparseSoftmaxCrossEntropyWithLogits": lambda g: (
        R.SparseSoftmaxCrossEntropyWithLogits(features=g, labels=[0, 1, 2, 3])
    ),
    "Zeta": lambda g: R.Zeta(x=1.5 + g, q=X),
}
# Zeros of as many values as another tensor, by what spreads them.
SPREAD: dict[str, Callable[[Any], tf.Tensor]] = {
    "BroadcastTo": lambda x: R.BroadcastTo(input=NONE_OF_IT, shape=tf.shape(x)),
    "Cast": lambda x: R.Cast(x=tf.zeros(tf.shape(x), tf.float64), DstT=tf.float32),
    "ExpandDims": lambda x: R.ExpandDims(input=tf.zeros(tf.shape(x)[:1]), axis=0),
    "Fill": lambda x: R.Fill(dims=tf.shape(x), value=NONE_OF_IT),
    "Identity": lambda x: R.Identity(input=tf.zeros(tf.shape(x))),
    "Reshape": lambda x: R.Reshape(tensor=tf.zeros([tf.size(x)]), shape=tf.shape(x)),
    "Tile": lambda x: R.Tile(input=[[0.0]], multiples=tf.shape(x)),
    "TensorListStack": lambda x: as_tensor(listed(tf.zeros(tf.shape(x)))),
    "TensorListFromTensor": lambda x: as_tensor(listed(tf.zeros(tf.shape(x)))),
}
CALLS |= {f"onto zeros by {name}": onto(each) for name, each in SPREAD.items()}
CALLS |= {  # besides
    "Cast to a truth value": lambda g: R.Cast(x=g, DstT=tf.bool),
    "Cast to a whole number": lambda g: R.Cast(x=g, DstT=tf.int32),
    "clipped by a fixed value": lambda g: R.Minimum(x=g, y=1.0),
    "joined with another": lambda g: R.ConcatV2(values=[g, X], axis=0),
    "a power of 3": lambda g: R.Pow(x=g, y=np.float32(3.0)),
    "a power by it": lambda g: R.Pow(x=X, y=g),
    "quantized in a range": lambda g: R.QuantizeAndDequantizeV2(
        input=g, input_min=-2.0, input_max=2.0, range_given=True
    ),
    "remainder of a number": lambda g: R.FloorMod(x=g, y=0.5),
    "its angle to a number": lambda g: R.Atan2(y=g, x=1.0),
    "a geometric mean": lambda g: R.Pow(
        x=R.Prod(input=R.Abs(x=g), axis=0), y=np.float32(0.25)
    ),
    "its cube root cubed": lambda g: R.Pow(
        x=R.Pow(x=R.Abs(x=g), y=np.float32(1 / 3)), y=np.float32(3.0)
    ),
}
TABLED = {
    *degrees._POWERS,
    *degrees._PARTS,
    *degrees._PRODUCTS,
    *degrees._RATIOS,
    *degrees._SOLUTIONS,
    *degrees._ALIKE,
    *degrees._COMPARE,
    *degrees._LINEAR,
    *degrees._CHOICES,
    *degrees._SHAPES,
    *degrees._SPREAD,
    *degrees._ZEROS,
    *degrees._SPECIAL,
    *degrees._BENT,
}
ALL = sorted({*CALLS, *TABLED})
ZEROS = ("EmptyTensorList", "TensorListReserve", "ZerosLike")
TRIED = [Fraction(n, 2) for n in range(-4, 9)]


def alone(name: str) -> Callable[[Any], Any]:
    """Calls an operation with a tensor, and nothing but its defaults."""
    function = getattr(R, name)
    parameters = inspect.signature(function).parameters.values()
    needed = [each.name for each in parameters if each.default is inspect._empty]

    def called(g: Any) -> Any:
        given = listed(g) if name.startswith("TensorList") else g
        return function(**{needed[0]: given})

    assert len(needed) == 1, f"{name} needs {needed}: a call of it is missing here"
    return called


def flat(results: Any) -> list[Any]:
    found: list[Any] = tf.nest.flatten(results)
    return [each for each in found if each is not None]


def values(fn: Callable[[Any], Any], g: np.ndarray) -> list[np.ndarray]:
    return [each.numpy() for each in flat(tf.function(fn)(tf.constant(g)))]


def told(fn: Callable[[Any], Any]) -> list[degrees.Degree]:
    """What the tables say of results."""
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [4, 4])
        before = len(graph.get_operations())
        results = flat(fn(given))
        of: dict[Any, degrees.Degree] = {given.ref(): degrees.ONE}
        known = homogeneity.Known()
        homogeneity._follow(graph.get_operations()[before:], of, known)
        return [homogeneity._degree(each, of) for each in results]


def test_all_that_spreads_zeros_is_called() -> None:
    assert {*degrees._SPREAD} == {*SPREAD}


def is_of(degree: Fraction, once: np.ndarray, scaled: np.ndarray) -> bool:
    if once.shape != scaled.shape:
        return False
    if once.dtype.kind not in "fc":
        return degree == 0 and bool((once == scaled).all())
    # Kernels that iterate, or work with angles, are right to some units in 2**-24.
    return bool(np.allclose(scaled, S ** float(degree) * once, rtol=2.0**-18))


@pytest.mark.parametrize("name", ALL)
def test_a_row_says_what_its_kernel_does(name: str) -> None:
    fn = CALLS[name] if name in CALLS else alone(name)
    said, once, scaled = told(fn), values(fn, G), values(fn, S * G)
    assert any(np.any(each) or each.dtype == bool for each in once) or name in ZEROS
    for degree, *both in zip(said, once, scaled, strict=True):
        if degree == degrees.NONE:
            assert not any(is_of(each, *both) for each in TRIED)
        elif degree == degrees.ZERO:
            assert not np.any(both)
        else:
            assert is_of(Fraction(degree), *both)
