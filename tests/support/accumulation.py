"""How TensorFlow's CPU kernels add up, found by summing ones: run alone, prints JSON.

Run by tests in a process of its own, since oneDNN reads `ONEDNN_MAX_CPU_ISA` once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Probe = Callable[[Any], Any]

LONG = 10_000
ONE_SEGMENT = np.zeros(LONG, np.int32)
raw = tf.raw_ops

# Sums of ones: every element of the result is the count (or, for means, 1).
SUMS: dict[str, tuple[Probe, tuple[int, ...]]] = {
    "Sum": (lambda x: raw.Sum(input=x, axis=[0]), (LONG, 8)),
    "Mean": (lambda x: raw.Mean(input=x, axis=[0]), (LONG, 8)),
    "BiasAddGrad": (lambda x: raw.BiasAddGrad(out_backprop=x), (LONG, 8)),
    "Cumsum": (lambda x: raw.Cumsum(x=x, axis=0)[-1], (LONG, 8)),
    "Einsum": (lambda x: raw.Einsum(inputs=[x, x], equation="i,i->"), (LONG,)),
    "UnsortedSegmentSum": (
        lambda x: raw.UnsortedSegmentSum(
            data=x, segment_ids=ONE_SEGMENT, num_segments=1
        ),
        (LONG, 8),
    ),
    "SparseSegmentSum": (
        lambda x: raw.SparseSegmentSum(
            data=x, indices=np.arange(LONG, dtype=np.int32), segment_ids=ONE_SEGMENT
        ),
        (LONG, 8),
    ),
    "ScatterNd": (
        lambda x: raw.ScatterNd(indices=ONE_SEGMENT[:, None], updates=x, shape=[1, 8]),
        (LONG, 8),
    ),
    "ResizeNearestNeighborGrad": (
        lambda x: raw.ResizeNearestNeighborGrad(grads=x, size=[1, 1]),
        (1, 100, 100, 4),
    ),
    "MatMul": (lambda x: raw.MatMul(a=x, b=x, transpose_a=True), (LONG, 8)),
    "BatchMatMulV2": (lambda x: raw.BatchMatMulV2(x=x, y=x, adj_x=True), (2, LONG, 8)),
    "L2Loss": (lambda x: raw.L2Loss(t=x), (LONG,)),
}

TYPES = ("float16", "bfloat16")
# Rounding the right count costs at most one unit: 2^-7 in bfloat16, 2^-10 in float16.
LOST = 2**-7


def accumulates_low(op: str, dtype: str) -> bool:
    """Whether the kernel that runs here miscounts 10,000 ones."""
    probe, shape = SUMS[op]
    with tf.device("CPU:0"):
        exact = probe(tf.ones(shape))
        found = tf.cast(probe(tf.ones(shape, dtype)), tf.float32)
    return float(tf.reduce_max(tf.abs(found / exact - 1))) > LOST


def low() -> dict[str, list[str]]:
    """By op, the types in which its kernel adds up low here."""
    return {op: [t for t in TYPES if accumulates_low(op, t)] for op in SUMS}


if __name__ == "__main__":
    print(json.dumps(low()))
