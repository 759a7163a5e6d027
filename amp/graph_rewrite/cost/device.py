"""What a device can do: one frozen `Device`, a table of them, and what "auto" means.

Figures and their sources only; `amp.integration.measuring.hardware` asks the machine.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from amp.loss_scaling.scale import DynamicLossScale, NoLossScale
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device as the cost model sees it. Only ratios of its figures matter.

    Attributes:
      name: what to call it.
      kind: TensorFlow's device type, "CPU" or "GPU".
      native: 16-bit types with arithmetic of their own, the preferred one first.
      bandwidth: bytes a second, streaming.
      flops: float32 multiply-adds count twice, operations a second in products.
      speed: by dtype and work, how many times `flops` a product reaches; "product"
        where a kind of work has no figure, 1 where there is neither.
      slowdown: by dtype and work, time over that of moving the same elements in float32
        at full bandwidth; without a figure, a type costs the bytes it has. Above 1/2
        for kernels that convert to float32 and back inside.
      launch: seconds that any operation costs.
      source: where the figures come from.
      compiled: the device as XLA's code finds it, None where that is the same.
      start: by dtype and work, seconds that a kernel costs however little it does,
        `launch` without a figure.
      casts: by 16-bit type, bytes a second that a cast reads and writes, `bandwidth`
        without a figure.
      call: under XLA, seconds of starting a function that XLA compiled from within a
        graph of kernels; infinite, so that none is started, without a figure.
    """

    name: str
    kind: str
    native: tuple[str, ...]
    bandwidth: float
    flops: float
    speed: Mapping[str, Mapping[str, float]]
    slowdown: Mapping[str, Mapping[str, float]]
    launch: float
    source: str
    compiled: Device | None = None
    start: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    casts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    call: float = math.inf

    def under(self, xla: bool) -> Device:
        """The device as kernels find it, or as XLA's code does."""
        return self.compiled if xla and self.compiled is not None else self

    def without_clusters(self) -> Device:
        """The device if no call of XLA's code may be made from kernels."""
        compiled = dataclasses.replace(self.under(True), call=math.inf)
        return dataclasses.replace(self, compiled=compiled)

    def describe(self) -> str:
        """One line for a person."""
        types = " and ".join(self.native) or "no 16-bit type"
        return f"{self.name} ({self.kind}; arithmetic in {types})"


_DATA_SHEET = "vendor's data sheet, nothing measured: "


def _gpu(
    name: str, native: tuple[str, ...], bandwidth: float, flops: float, ratio: float
) -> Device:
    # A type without arithmetic at half of float32's rate, and the launch, are guesses.
    speed = {dtype: {"product": ratio if dtype in native else 0.5} for dtype in _LOW}
    source = f"{_DATA_SHEET}{name}, memory bandwidth, dense float32 and 16-bit peaks"
    return Device(name, "GPU", native, bandwidth, flops, speed, {}, 4e-6, source)


_LOW = ("float16", "bfloat16")

_CPU_XLA = Device(
    name="CPU under XLA",
    kind="CPU",
    native=(),
    bandwidth=3.0e10,
    flops=2.0e11,
    speed={dtype: {"product": 0.42} for dtype in _LOW},
    slowdown={
        "float32": {"transcendental": 4.0},
        **{dtype: {"elementwise": 1.5, "transcendental": 6.0} for dtype in _LOW},
    },
    launch=1e-6,
    source=(
        "measured on one 2-core AMX machine: an LSTM step under XLA in bfloat16; on a "
        "2-core AVX2 machine: chains of 4 elementwise operations, which XLA runs in "
        "half the time of kernels, and of tanh, in twice, and the start of a call; the "
        "rest reckoned from them"
    ),
    call=5e-5,
)
CPU_AMX = Device(
    name="x86 CPU with AMX bfloat16",
    kind="CPU",
    native=("bfloat16",),
    bandwidth=1.5e10,
    flops=2.0e11,
    speed={
        "bfloat16": {
            "product": 4.1,
            "conv": 6.4,
            "conv_grad_input": 4.4,
            "conv_grad_filter": 3.1,
        },
        "float16": {"product": 0.1, "conv": 0.01},
    },
    slowdown={
        "bfloat16": {"elementwise": 1.25, "transcendental": 1.8, "reduce": 1.2},
        "float16": {"elementwise": 4.0, "transcendental": 4.0, "reduce": 4.0},
    },
    launch=3e-6,
    source=(
        "measured on one 2-core AMX machine: ratios of TensorFlow 2.21's kernels in "
        "bfloat16; float16 and the absolute figures are estimates"
    ),
    compiled=_CPU_XLA,
)
CPU_AVX512_BF16 = dataclasses.replace(
    CPU_AMX,
    name="x86 CPU with AVX512-BF16",
    speed={"bfloat16": {"product": 1.8}, "float16": {"product": 0.1, "conv": 0.01}},
    source=(
        "not measured: two multiply-adds a lane and cycle (VDPBF16PS, Intel's manual); "
        "the rest as on AMX"
    ),
)
CPU_PLAIN = dataclasses.replace(
    CPU_AMX,
    name="CPU without AMX or AVX512-BF16",
    native=(),
    speed={"bfloat16": {"product": 0.3}, "float16": {"product": 0.1, "conv": 0.01}},
    source="a cautious guess: 16-bit kernels convert to float32 inside",
)
# Peaks of the vendor's data sheets, without sparsity, in TFLOP/s: V100 SXM2 900 GB/s,
# float32 15.7, float16 125; A100 SXM 40 GB 1555 GB/s, TF32 (what TensorFlow computes
# float32 products in, by default) 156, 16 bits 312; H100 SXM5 3.35 TB/s, TF32 494.7,
# 16 bits 989.4; H200 4.8 TB/s, else as H100; T4 320 GB/s, float32 8.1, float16 65;
# GTX 1080 320 GB/s, float32 8.9.
V100 = _gpu("NVIDIA V100", ("float16",), 9.0e11, 1.57e13, 8.0)
A100 = _gpu("NVIDIA A100", ("float16", "bfloat16"), 1.555e12, 1.56e14, 2.0)
H100 = _gpu("NVIDIA H100", ("float16", "bfloat16"), 3.35e12, 4.94e14, 2.0)
H200 = _gpu("NVIDIA H200", ("float16", "bfloat16"), 4.8e12, 4.94e14, 2.0)
GPU_TENSOR_CORES = _gpu(
    "GPU with Tensor Cores (as a T4)", ("float16",), 3.2e11, 8.1e12, 8.0
)
GPU_PLAIN = _gpu("GPU without Tensor Cores (as a GTX 1080)", (), 3.2e11, 8.9e12, 1.0)

# What emulation plans for: arithmetic in both types, and tensors so large that starting
# a kernel costs nothing, so that a small model is rounded where a large one would be.
REFERENCE = dataclasses.replace(A100, name="a large GPU (reference)", launch=0.0)


def of_cpu(flags: frozenset[str]) -> Device:
    """The device that a CPU with these feature flags (as Linux names them) is."""
    if "amx_bf16" in flags:
        return CPU_AMX
    return CPU_AVX512_BF16 if "avx512_bf16" in flags else CPU_PLAIN


def of_gpu(name: str, capability: tuple[int, int]) -> Device:
    """The device that a GPU of this name and compute capability is.

    A model counts as known where its name stands as a word of its own ("NVIDIA
    A100-SXM4-40GB", not "NVIDIA RTX A1000"); any other has the figures of one of the
    same capability, or of the newest before it.
    """
    words = re.findall(r"[A-Z0-9]+", name.upper())
    for known in (V100, A100, H200, H100):
        if known.name.split()[-1] in words:
            return known
    for least, known in ((9, 0), H100), ((8, 0), A100):
        if capability >= least:
            model = known.name.split()[-1]
            return dataclasses.replace(known, name=f"{name} (figures of an {model})")
    if capability >= (7, 0):
        return dataclasses.replace(GPU_TENSOR_CORES, name=name)
    return dataclasses.replace(GPU_PLAIN, name=name)


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """What a policy comes to on a device.

    Attributes:
      policy: with every "auto" settled, or None: nothing is to be done.
      device: the device that costs are taken from.
      reason: why, in one line.
    """

    policy: Policy | None
    device: Device
    reason: str


def resolve(policy: Policy, device: Device) -> Resolution:
    """Settles "auto" fields.

    float16 with dynamic loss scaling on a GPU of compute capability 7.0 or newer;
    bfloat16 without scaling on a CPU with AMX or AVX512-BF16; otherwise off.
    """
    dtype = policy.dtype
    if dtype == "auto":
        native = device.native or (("bfloat16",) if policy.emulate else ())
        if not native:
            reason = (
                f"mixed precision is off: no 16-bit arithmetic on this {device.name}; "
                "AMP_EMULATE=1 (emulate=True) shows how the model converges"
            )
            return Resolution(None, device, reason)
        dtype = native[0]
    scale = policy.loss_scale
    if scale == "auto":
        scale = DynamicLossScale() if dtype == "float16" else NoLossScale()
    settled = dataclasses.replace(policy, dtype=dtype, loss_scale=scale)
    how = "emulated on" if policy.emulate else "on"
    reason = f"{dtype} {how} {device.name}, loss scale {scale}"
    return Resolution(settled, REFERENCE if policy.emulate else device, reason)
