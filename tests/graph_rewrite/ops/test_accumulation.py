"""The op table says of TensorFlow's kernels how they add up, and they do."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys

import accumulation
import pytest
import tensorflow as tf

from amp.graph_rewrite.ops.accumulation import Terms
from amp.graph_rewrite.ops.op_table import TABLE, Role, Row
from amp.integration.measuring import hardware

pytestmark = pytest.mark.kernels
raw = tf.raw_ops


@pytest.fixture(scope="module")
def without_16_bit_instructions() -> dict[str, list[str]]:
    """By op, the types in which kernels add up low where oneDNN is not there."""
    done = subprocess.run(
        [sys.executable, accumulation.__file__],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("dtype", accumulation.TYPES)
@pytest.mark.parametrize("op", accumulation.SUMS)
def test_what_is_not_listed_never_accumulates_low(op: str, dtype: str) -> None:
    """Law: whatever instructions this CPU has, a kernel that is not listed is exact."""
    row, native = TABLE[op], dtype in hardware.shipped().native
    if dtype not in row.adds_up_low("CPU", native=native):
        assert not accumulation.accumulates_low(op, dtype)


@pytest.mark.parametrize("op", accumulation.SUMS)
def test_accumulates_low_is_what_kernels_do_without_16_bit_instructions(
    op: str, without_16_bit_instructions: dict[str, list[str]]
) -> None:
    assert tuple(without_16_bit_instructions[op]) == TABLE[op].accumulates_low


@pytest.mark.parametrize("dtype", accumulation.TYPES)
@pytest.mark.parametrize(
    "op", [op for op in accumulation.SUMS if op not in accumulation.UNCOMPILED]
)
def test_xla_accumulates_low_is_what_xla_does(op: str, dtype: str) -> None:
    listed = dtype in TABLE[op].xla_accumulates_low
    assert accumulation.accumulates_low(op, dtype, xla=True) is listed


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_gpu_accumulates_low_is_what_tensorflows_header_has(op: str) -> None:
    """Of the types that it does not convert to float32 by a specialization."""
    header = "tensorflow/core/kernels/reduction_gpu_kernels.cu.h"
    text = pathlib.Path(tf.sysconfig.get_include(), header).read_text()
    names = {"float16": "half", "bfloat16": "bfloat16"}
    low = [d for d in names if f"{op}Reducer<Eigen::{names[d]}>> {{" not in text]
    assert TABLE[op].gpu_accumulates_low == tuple(low)


AVERAGED = ("Softmax", "LogSoftmax")


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.op)
def test_what_adds_up_low_says_how_many_terms(row: Row) -> None:
    """Law: or the rule that counts terms would not see it."""
    by_type = (*row.accumulates_low, *row.gpu_accumulates_low, *row.xla_accumulates_low)
    if (by_type or row.sums) and row.role is not Role.KEEP and row.op not in AVERAGED:
        assert row.terms is not Terms.FEW
    if row.native_accumulates_low is not None:
        assert set(row.native_accumulates_low) < set(row.accumulates_low)


def test_softmax_in_float16_overflows_within_as_the_table_says() -> None:
    # Of the CPU itself: kernels stay what they are under --sixteen-bit.
    has = "avx512_fp16" in pathlib.Path("/proc/cpuinfo").read_text().split()
    onednn = has and not hardware.is_onednn_off() and not hardware.onednn_limit()
    with tf.device("CPU:0"):
        low = tf.zeros([1, 2**17], "float16")
        assert float(raw.LogSoftmax(logits=low)[0, 0]) == -math.inf
        assert (float(raw.Softmax(logits=low)[0, 0]) == 0) != onednn
        assert float(raw.Softmax(logits=tf.zeros([1, 2**17], "bfloat16"))[0, 0]) > 0
