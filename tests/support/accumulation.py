"""How TensorFlow's CPU kernels add up, found by adding normal numbers.

Run alone, prints JSON: tests run it in a process of its own, since oneDNN reads its
environment once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Probe = Callable[..., Any]

LONG = 1024
COLUMNS = 64
raw = tf.raw_ops
_ONE = np.zeros(LONG, np.int32)  # indices that are all the same
_ORDER = np.arange(LONG, dtype=np.int32)
_FLAT = (LONG, COLUMNS)
_SQUARE = {"strides": [1, 1, 1, 1], "padding": "VALID"}
_WINDOW = {"ksize": [1, 16, 16, 1], **_SQUARE}
_CUBE = {"strides": [1, 1, 1, 1, 1], "padding": "VALID"}


def _peak() -> tf.Tensor:
    """What has its maximum in the middle, which all windows of 16 x 16 choose."""
    return (
        tf.one_hot([15], 31)[:, :, None, None] * tf.one_hot([15], 31)[:, None, :, None]
    )


def _max_pool_grad(x: tf.Tensor) -> tf.Tensor:
    peak = tf.cast(tf.tile(_peak(), [1, 1, 1, COLUMNS]), x.dtype)
    most = raw.MaxPool(input=peak, **_WINDOW)
    found = raw.MaxPoolGrad(orig_input=peak, orig_output=most, grad=x, **_WINDOW)
    return found[:, 15, 15]


def _average_grad(x: tf.Tensor) -> tf.Tensor:
    shape = [1, 31, 31, COLUMNS]
    return raw.AvgPoolGrad(orig_input_shape=shape, grad=x, **_WINDOW)[:, 15, 15]


def _filters(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    sizes = [1, 1, 8, 8]
    return raw.Conv2DBackpropFilter(
        input=x, filter_sizes=sizes, out_backprop=y, **_SQUARE
    )


def _inputs(w: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    sizes = [2, 3, 3, 8]
    return raw.Conv2DBackpropInput(
        input_sizes=sizes, filter=w, out_backprop=y, **_SQUARE
    )


# By op, what adds up some hundred numbers to each element of its result.
SUMS: dict[str, tuple[Probe, list[tuple[int, ...]]]] = {
    "Sum": (lambda x: raw.Sum(input=x, axis=[0]), [_FLAT]),
    "Mean": (lambda x: raw.Mean(input=x, axis=[0]), [_FLAT]),
    "BiasAddGrad": (lambda x: raw.BiasAddGrad(out_backprop=x), [_FLAT]),
    "Cumsum": (lambda x: raw.Cumsum(x=x, axis=0)[-1], [_FLAT]),
    "AddN": (lambda x: raw.AddN(inputs=tf.unstack(x)), [(256, COLUMNS)]),
    "Einsum": (
        lambda x, y: raw.Einsum(inputs=[x, y], equation="bi,bi->b"),
        [(COLUMNS, LONG)] * 2,
    ),
    "SegmentSum": (lambda x: raw.SegmentSum(data=x, segment_ids=_ONE), [_FLAT]),
    "SegmentMean": (lambda x: raw.SegmentMean(data=x, segment_ids=_ONE), [_FLAT]),
    "UnsortedSegmentSum": (
        lambda x: raw.UnsortedSegmentSum(data=x, segment_ids=_ONE, num_segments=1),
        [_FLAT],
    ),
    "SparseSegmentSum": (
        lambda x: raw.SparseSegmentSum(data=x, indices=_ORDER, segment_ids=_ONE),
        [_FLAT],
    ),
    "ScatterNd": (
        lambda x: raw.ScatterNd(indices=_ONE[:, None], updates=x, shape=[1, COLUMNS]),
        [_FLAT],
    ),
    "TensorScatterAdd": (
        lambda x: raw.TensorScatterAdd(
            tensor=tf.zeros([1, COLUMNS], x.dtype), indices=_ONE[:, None], updates=x
        ),
        [_FLAT],
    ),
    "ResizeNearestNeighborGrad": (
        lambda x: raw.ResizeNearestNeighborGrad(grads=x, size=[1, 1]),
        [(1, 32, 32, COLUMNS)],
    ),
    "AvgPool": (lambda x: raw.AvgPool(value=x, **_WINDOW), [(1, 16, 16, COLUMNS)]),
    "AvgPoolGrad": (_average_grad, [(1, 16, 16, COLUMNS)]),
    "MaxPoolGrad": (_max_pool_grad, [(1, 16, 16, COLUMNS)]),
    "MatMul": (lambda x, y: raw.MatMul(a=x, b=y, transpose_a=True), [(LONG, 8)] * 2),
    "BatchMatMulV2": (
        lambda x, y: raw.BatchMatMulV2(x=x, y=y, adj_x=True),
        [(2, LONG, 8)] * 2,
    ),
    "Conv2D": (
        lambda x, w: raw.Conv2D(input=x, filter=w, **_SQUARE),
        [(2, 3, 3, LONG), (1, 1, LONG, 8)],
    ),
    "Conv2DBackpropInput": (_inputs, [(1, 1, 8, LONG), (2, 3, 3, LONG)]),
    "Conv2DBackpropFilter": (_filters, [(4, 16, 16, 8)] * 2),
    "Conv3D": (
        lambda x, w: raw.Conv3D(input=x, filter=w, **_CUBE),
        [(2, 2, 3, 3, LONG), (1, 1, 1, LONG, 8)],
    ),
    "DepthwiseConv2dNative": (
        lambda x, w: raw.DepthwiseConv2dNative(input=x, filter=w, **_SQUARE),
        [(1, 16, 16, COLUMNS), (16, 16, COLUMNS, 1)],
    ),
    "L2Loss": (lambda x: raw.L2Loss(t=x), [_FLAT]),
}
# What XLA has no form of, or takes minutes to compile (MaxPoolGrad in such windows).
UNCOMPILED = ("SegmentSum", "SegmentMean", "SparseSegmentSum")
UNCOMPILED += ("ResizeNearestNeighborGrad", "MaxPoolGrad")

TYPES = ("float16", "bfloat16")
_DIGITS = {"float16": 11, "bfloat16": 8}
# Adding n numbers of either sign one by one in 16 bits makes sqrt(n / 2) times the
# error of rounding their sum, 11 for n = 256; in blocks of 8 a third of it. A kernel
# that adds up in float32 makes that of the last rounding, or twice that if it cuts
# digits off.
COARSE = 3.0


def accumulates_low(op: str, dtype: str, *, xla: bool = False) -> bool:
    """Whether the kernel that runs here adds up in the 16-bit type."""
    probe, shapes = SUMS[op]
    called = tf.function(probe, jit_compile=True) if xla else probe
    random = np.random.default_rng(0)
    given = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    low = [tf.cast(value, dtype) for value in given]
    with tf.device("CPU:0"):
        exact = called(*[tf.cast(value, tf.float32) for value in low]).numpy()
        found = tf.cast(called(*low), tf.float32).numpy()
    places = np.floor(np.log2(np.abs(exact))) + 1 - _DIGITS[dtype]
    rounding = np.sqrt(np.mean(4.0**places) / 12)
    return float(np.sqrt(np.mean((found - exact) ** 2)) / rounding) > COARSE


def low() -> dict[str, list[str]]:
    """By op, the types in which its kernel adds up low here."""
    return {op: [t for t in TYPES if accumulates_low(op, t)] for op in SUMS}


if __name__ == "__main__":
    print(json.dumps(low()))
