"""The figures of the devices that the package knows, and how a device is recognised.

One table; a new device is a new entry here. Figures and their sources only: what a
figure means is said in `device`, and nothing is asked of the machine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from amp.graph_rewrite.cost.device import Device

_DATA_SHEET = "vendor's data sheet, nothing measured: "


def _gpu(
    name: str, native: tuple[str, ...], bandwidth: float, flops: float, ratio: float
) -> Device:
    # Two guesses: a type without hardware support runs at half of float32's rate, and
    # a launch takes 4 microseconds.
    speed = {dtype: {"product": ratio if dtype in native else 0.5} for dtype in _LOW}
    memory, peak = f"{bandwidth / 1e9:.0f} GB/s", f"{flops / 1e12:.3g} TFLOP/s"
    low = f", {ratio:g} times that in {' and '.join(native)}" if native else ""
    source = f"{_DATA_SHEET}{name}, {memory}, {peak} in float32 products{low}"
    return Device(name, "GPU", native, bandwidth, flops, speed, {}, 4e-6, source)


_LOW = ("float16", "bfloat16")

_CPU_XLA = Device(
    name="CPU under XLA",
    kind="CPU",
    native=(),
    bandwidth=3.0e10,
    flops=1.0e11,
    speed={},
    slowdown={
        "float32": {"transcendental": 4.0},
        **{dtype: {"elementwise": 1.5, "transcendental": 6.0} for dtype in _LOW},
    },
    launch=1e-6,
    source=(
        "that products are in float32: read in what XLA compiles (TensorFlow 2.21); on "
        "a 2-core AVX2 machine: chains of 4 elementwise operations, which XLA runs in "
        "half the time of kernels, and of tanh, in twice, and the start of a call; on "
        "a 2-core AVX512-BF16 machine: the rate of products, and what operations take "
        "inside a loop, in which 16 bits are rounded after each, and which is not "
        "vectorised if it is long"
    ),
    call=5e-5,
    widens=True,
    inside={
        "float32": {
            "elementwise": 1e-11,
            "transcendental": 1e-9,
            "softmax": 5e-10,
            "loss": 5e-10,
            "normalise": 1e-10,
        },
        "bfloat16": {
            "elementwise": 5e-10,
            "transcendental": 1.6e-9,
            "reduce": 4e-10,
            "softmax": 9e-9,
            "loss": 9e-9,
            "normalise": 4e-10,
        },
        "float16": {
            "elementwise": 3e-10,
            "transcendental": 1.6e-9,
            "reduce": 4e-10,
            "softmax": 6e-9,
            "loss": 6e-9,
            "normalise": 4e-10,
        },
    },
)
# Of updates of rows, and Unique: times that of moving as much, in float32.
_ROWS = {"scatter": 2.7, "unique": 50.0}
_TUNED_XLA = (
    "measured as its kernels, by `amp tune`, in chains of operations; what they take "
    "inside a loop: on a 2-core AVX512-BF16 machine"
)
_AMX_XLA = dataclasses.replace(
    _CPU_XLA,
    name="CPU with AMX under XLA",
    bandwidth=2.9e10,
    flops=2.8e11,
    slowdown={
        "float32": {
            "elementwise": 0.15,
            "transcendental": 1.5,
            "reduce": 0.94,
            "softmax": 3.0,
            "loss": 3.0,
        },
        "bfloat16": {
            "elementwise": 0.27,
            "transcendental": 2.3,
            "reduce": 2.6,
            "softmax": 12.0,
            "loss": 12.0,
        },
        "float16": {
            "elementwise": 0.11,
            "transcendental": 2.1,
            "reduce": 2.6,
            "softmax": 4.2,
            "loss": 4.2,
        },
    },
    source=_TUNED_XLA,
    call=6e-6,
)
CPU_AMX = Device(
    name="x86 CPU with AMX bfloat16",
    kind="CPU",
    native=("bfloat16",),
    bandwidth=5.0e10,
    flops=3.3e11,
    speed={
        "float32": {
            "batch_matmul": 0.63,
            "conv": 0.85,
            "conv_grad_filter": 0.63,
            "depthwise": 0.061,
            "depthwise_grad_strided": 0.022,
        },
        "bfloat16": {
            "product": 3.9,
            "batch_matmul": 1.2,
            "conv": 3.1,
            "conv_grad_input": 2.6,
            "conv_grad_filter": 1.1,
            "depthwise": 0.056,
            "depthwise_grad_strided": 0.0008,
        },
        "float16": {
            "product": 0.96,
            "batch_matmul": 0.65,
            "conv": 0.63,
            "conv_grad_input": 0.61,
            "conv_grad_filter": 0.002,
            "depthwise": 0.011,
            "depthwise_grad_strided": 0.002,
        },
    },
    slowdown={
        "float32": {
            "matmul": 1.9,
            "matmul_transposed": 7.7,
            "transcendental": 2.6,
            "reduce": 2.5,
            "softmax": 2.3,
            "loss": 14.0,
            "normalise": 4.1,
            "pool": 3.2,
            "copy": 1.4,
            "gather": 2.0,
            **_ROWS,
        },
        "bfloat16": {
            "elementwise": 1.25,
            "composite": 2.6,
            "matmul": 1.4,
            "matmul_transposed": 1.4,
            "transcendental": 5.4,
            "reduce": 2.8,
            "softmax": 2.4,
            "loss": 25.0,
            "normalise": 2.8,
            "pool": 2.7,
            "copy": 1.1,
            "gather": 1.4,
        },
        "float16": {
            "elementwise": 0.66,
            "composite": 1.1,
            "matmul": 2.1,
            "matmul_transposed": 6.8,
            "transcendental": 3.6,
            "reduce": 2.4,
            "softmax": 2.4,
            "normalise": 4.1,
            "pool": 4.1,
            "copy": 1.2,
            "gather": 1.3,
        },
    },
    launch=3e-6,
    start={
        "float32": {
            "conv": 6e-6,
            "conv_grad_input": 5.6e-5,
            "conv_grad_filter": 9.4e-5,
        },
        "bfloat16": {
            "conv": 6.7e-5,
            "conv_grad_input": 5.4e-5,
            "conv_grad_filter": 1.7e-4,
        },
        "float16": {
            "conv": 6.0e-5,
            "conv_grad_input": 5.6e-5,
            "conv_grad_filter": 1.4e-4,
        },
    },
    casts={"bfloat16": 3.7e10, "float16": 3.8e10},
    source=(
        "measured by `amp tune` on 2 cores of a virtual Xeon with AMX and AVX512-FP16 "
        "(family 6, model 167; medians of three runs, TensorFlow 2.21); losses of "
        "classes on one of model 207, as times those of a softmax (6 to 8 of 100 to "
        "10,000 classes; with dense labels 4); on one with AVX512-BF16, updates of "
        "rows of 16 to 512 elements and Unique, gradients of strided depthwise "
        "convolutions, products of few rows with a transposed operand and elementwise "
        "kernels of several operations, the latter two as times those of others; the "
        "start of other operations is an estimate"
    ),
    compiled=_AMX_XLA,
)
_AVX512_XLA = dataclasses.replace(
    _CPU_XLA,
    name="CPU with AVX512-BF16 under XLA",
    bandwidth=5.2e10,
    flops=3.8e11,
    slowdown={
        "float32": {
            "elementwise": 0.2,
            "transcendental": 2.6,
            "reduce": 0.91,
            "softmax": 3.0,
            "loss": 3.0,
        },
        "bfloat16": {
            "elementwise": 0.42,
            "transcendental": 4.4,
            "reduce": 2.8,
            "softmax": 13.0,
            "loss": 13.0,
        },
        "float16": {
            "elementwise": 0.21,
            "transcendental": 4.4,
            "reduce": 2.5,
            "softmax": 8.1,
            "loss": 8.1,
        },
    },
    source=_TUNED_XLA,
    call=4.4e-6,
)
CPU_AVX512_BF16 = Device(
    name="x86 CPU with AVX512-BF16",
    kind="CPU",
    native=("bfloat16",),
    bandwidth=8.4e10,
    flops=3.6e11,
    speed={
        "float32": {
            "batch_matmul": 0.83,
            "conv": 1.2,
            "conv_grad_input": 1.1,
            "conv_grad_filter": 0.9,
            "depthwise": 0.094,
            "depthwise_grad_strided": 0.034,
        },
        "bfloat16": {
            "product": 2.1,
            "batch_matmul": 1.2,
            "conv": 2.3,
            "conv_grad_input": 2.2,
            "conv_grad_filter": 1.65,
            "depthwise": 0.095,
            "depthwise_grad_strided": 0.0012,
        },
        "float16": {
            "product": 0.72,
            "batch_matmul": 0.3,
            "conv": 1.1,
            "conv_grad_input": 0.076,
            "conv_grad_filter": 0.084,
            "depthwise": 0.038,
            "depthwise_grad_strided": 0.0071,
        },
    },
    slowdown={
        "float32": {
            "matmul": 3.2,
            "matmul_transposed": 13.0,
            "transcendental": 3.3,
            "reduce": 2.1,
            "softmax": 2.1,
            "normalise": 2.5,
            "pool": 3.3,
            "copy": 1.8,
            "gather": 0.92,
            **_ROWS,
        },
        "bfloat16": {
            "elementwise": 1.3,
            "composite": 2.8,
            "matmul": 3.1,
            "matmul_transposed": 3.0,
            "transcendental": 7.6,
            "reduce": 1.9,
            "softmax": 2.1,
            "normalise": 1.7,
            "pool": 3.0,
            "copy": 1.4,
            "gather": 0.82,
        },
        "float16": {
            "elementwise": 0.62,
            "composite": 1.1,
            "matmul": 4.6,
            "matmul_transposed": 15.0,
            "transcendental": 4.6,
            "reduce": 1.8,
            "softmax": 7.1,
            "normalise": 4.7,
            "pool": 5.6,
            "copy": 1.6,
            "gather": 0.74,
        },
    },
    launch=3e-6,
    start={
        "float32": {
            "conv": 5.2e-6,
            "conv_grad_input": 3.7e-5,
            "conv_grad_filter": 6.6e-5,
        },
        "bfloat16": {
            "conv": 3.6e-5,
            "conv_grad_input": 3.8e-5,
            "conv_grad_filter": 1.2e-4,
        },
        "float16": {
            "conv": 3.1e-6,
            "conv_grad_input": 3.5e-6,
            "conv_grad_filter": 5.3e-6,
        },
    },
    casts={"bfloat16": 9.0e10, "float16": 1.04e11},
    source=(
        "measured by `amp tune` on 2 cores of a virtual EPYC with AVX512-BF16 (family "
        "26, model 2; medians of three runs, TensorFlow 2.21); updates of rows of 16 "
        "to 512 elements and Unique: on another; the start of other operations is an "
        "estimate"
    ),
    compiled=_AVX512_XLA,
)
CPU_HIDDEN_AMX = dataclasses.replace(
    CPU_AVX512_BF16,
    name="Intel CPU with AVX512-BF16 whose AMX is hidden",
    speed={
        "bfloat16": {
            "product": 0.6,
            "conv": 0.7,
            "conv_grad_input": 0.65,
            "conv_grad_filter": 0.85,
        },
        "float16": {"product": 0.1, "conv": 0.01},
    },
    source=(
        "rates of bfloat16 products and convolutions: measured by `amp tune` on 2 "
        "cores of a virtual Xeon (family 6, model 207), TensorFlow 2.21; those of "
        "float16 are guesses, and the rest is as on AVX512-BF16"
    ),
)
CPU_PLAIN = Device(
    name="CPU without AMX or AVX512-BF16",
    kind="CPU",
    native=(),
    bandwidth=1.5e10,
    flops=2.0e11,
    speed={"bfloat16": {"product": 0.3}, "float16": {"product": 0.1, "conv": 0.01}},
    slowdown={
        "float32": _ROWS,
        "bfloat16": {
            "elementwise": 1.25,
            "composite": 2.6,
            "transcendental": 1.8,
            "reduce": 1.2,
        },
        "float16": {"elementwise": 4.0, "transcendental": 4.0, "reduce": 4.0},
    },
    launch=3e-6,
    source="a cautious guess: 16-bit kernels convert to float32 inside",
    compiled=_CPU_XLA,
)
# From the vendor's data sheets, peaks without sparsity in TFLOP/s: V100 SXM2 900 GB/s,
# float32 15.7, float16 125; A100 SXM 40 GB 1555 GB/s, TF32 (what TensorFlow computes
# float32 products in, by default) 156, 16 bits 312; H100 SXM5 3.35 TB/s, TF32 494.7,
# 16 bits 989.4; H200 4.8 TB/s, else as H100; L4 300 GB/s, TF32 60.5, 16 bits 121; T4
# 320 GB/s, float32 8.1, float16 65; GTX 1080 320 GB/s, float32 8.9.
V100 = _gpu("NVIDIA V100", ("float16",), 9.0e11, 1.57e13, 8.0)
A100 = _gpu("NVIDIA A100", ("float16", "bfloat16"), 1.555e12, 1.56e14, 2.0)
H100 = _gpu("NVIDIA H100", ("float16", "bfloat16"), 3.35e12, 4.94e14, 2.0)
H200 = _gpu("NVIDIA H200", ("float16", "bfloat16"), 4.8e12, 4.94e14, 2.0)
L4 = _gpu("NVIDIA L4", ("float16", "bfloat16"), 3.0e11, 6.05e13, 2.0)
GPU_TENSOR_CORES = _gpu(
    "GPU with Tensor Cores (as a T4)", ("float16",), 3.2e11, 8.1e12, 8.0
)
GPU_PLAIN = _gpu("GPU without Tensor Cores (as a GTX 1080)", (), 3.2e11, 8.9e12, 1.0)

# Emulation plans for this device: it computes in both 16-bit types, and starting a
# kernel costs nothing, so that a small model is rounded where a large one would be.
REFERENCE = dataclasses.replace(A100, name="a large GPU (reference)", launch=0.0)

# What `--device` and `amp.explain(device=...)` may name.
NAMED: Mapping[str, Device] = {
    "v100": V100,
    "t4": dataclasses.replace(GPU_TENSOR_CORES, name="NVIDIA T4"),
    "l4": L4,
    "a100": A100,
    "h100": H100,
    "h200": H200,
    "amx": CPU_AMX,
    "avx512_bf16": CPU_AVX512_BF16,
    "cpu": CPU_PLAIN,
}


def of_cpu(flags: frozenset[str], vendor: str = "") -> Device:
    """The `Device` for a CPU.

    Intel's CPUs with AVX512-FP16 all have AMX, which a virtual machine may hide; what
    is left of their bfloat16 is slower than float32.

    Args:
      flags: its features, with their names in /proc/cpuinfo.
      vendor: its `vendor_id` there.
    """
    if "amx_bf16" in flags:
        return CPU_AMX
    if "avx512_bf16" not in flags:
        return CPU_PLAIN
    hidden = vendor == "GenuineIntel" and "avx512_fp16" in flags
    return CPU_HIDDEN_AMX if hidden else CPU_AVX512_BF16


def of_gpu(name: str, capability: tuple[int, int]) -> Device:
    """The `Device` for a GPU of this name and compute capability.

    A model is recognised by its name as a whole word ("NVIDIA A100-SXM4-40GB", not
    "NVIDIA RTX A1000"). Any other GPU gets the figures of a model with the same compute
    capability, or of the newest older one.
    """
    words = re.findall(r"[A-Z0-9]+", name.upper())
    for known in (V100, A100, H200, H100, L4):
        if known.name.split()[-1] in words:
            return known
    for least, known in ((9, 0), H100), ((8, 0), A100):
        if capability >= least:
            model = known.name.split()[-1]
            return dataclasses.replace(known, name=f"{name} (figures of an {model})")
    if capability >= (7, 0):
        return dataclasses.replace(GPU_TENSOR_CORES, name=name)
    return dataclasses.replace(GPU_PLAIN, name=name)
