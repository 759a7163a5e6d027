"""`device`: which device a machine is, and what "auto" comes to on it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from amp.graph_rewrite.cost import device as devices
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, NoLossScale
from amp.policy import Policy

WITH = [devices.V100, devices.A100, devices.H100, devices.H200, devices.CPU_AMX]


@pytest.mark.parametrize(
    ("flags", "device"),
    [
        ({"avx2", "amx_bf16", "avx512_bf16"}, devices.CPU_AMX),
        ({"avx2", "avx512_bf16"}, devices.CPU_AVX512_BF16),
        ({"avx2", "avx512f"}, devices.CPU_PLAIN),
        (set(), devices.CPU_PLAIN),
    ],
)
def test_a_cpu_is_known_by_its_flags(flags: set[str], device: devices.Device) -> None:
    assert devices.of_cpu(frozenset(flags)) is device


@pytest.mark.parametrize(
    ("name", "capability", "native"),
    [
        ("NVIDIA A100-SXM4-40GB", (8, 0), ("float16", "bfloat16")),
        ("NVIDIA H200", (9, 0), ("float16", "bfloat16")),
        ("NVIDIA RTX 9999", (12, 0), ("float16", "bfloat16")),
        ("Tesla T4", (7, 5), ("float16",)),
        ("Tesla P100-PCIE-16GB", (6, 0), ()),
    ],
)
def test_a_gpu_is_known_by_its_name_or_its_capability(
    name: str, capability: tuple[int, int], native: tuple[str, ...]
) -> None:
    device = devices.of_gpu(name, capability)
    assert device.native == native
    assert device.kind == "GPU"
    assert device.name.split()[-1] in name or name in device.name


@pytest.mark.parametrize(
    ("name", "capability", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", (8, 0), devices.A100),
        ("NVIDIA A100 80GB PCIe", (8, 0), devices.A100),
        ("GRID A100-7C", (8, 0), devices.A100),
        ("Tesla V100-SXM2-16GB", (7, 0), devices.V100),
        ("NVIDIA H100 80GB HBM3", (9, 0), devices.H100),
        ("NVIDIA H200", (9, 0), devices.H200),
        ("NVIDIA RTX A1000 Laptop GPU", (8, 6), None),
        ("NVIDIA RTX A1000", (8, 6), None),
        ("NVIDIA A1000", (8, 6), None),
        ("NVIDIA A10", (8, 6), None),
        ("NVIDIA GH200 480GB", (9, 0), None),
        ("NVIDIA X2V100", (7, 5), None),
    ],
)
def test_a_model_is_known_by_a_word_of_its_name_not_by_a_part_of_one(
    name: str, capability: tuple[int, int], known: devices.Device | None
) -> None:
    device = devices.of_gpu(name, capability)
    if known is not None:
        assert device is known
    else:
        assert device.name.startswith(name)


def test_an_unknown_gpu_has_the_figures_of_its_generation() -> None:
    found = devices.of_gpu("NVIDIA GH200 480GB", (9, 0))
    assert found.bandwidth == devices.H100.bandwidth
    found = devices.of_gpu("NVIDIA RTX A1000", (8, 6))
    assert found.bandwidth == devices.A100.bandwidth


def test_auto_is_float16_with_dynamic_scaling_on_a_gpu() -> None:
    settled = devices.resolve(Policy(), devices.A100)
    assert settled.policy is not None
    assert settled.policy.dtype == "float16"
    assert settled.policy.loss_scale == DynamicLossScale()


@pytest.mark.parametrize("device", [devices.CPU_AMX, devices.CPU_AVX512_BF16])
def test_auto_is_bfloat16_without_scaling_on_a_cpu(device: devices.Device) -> None:
    settled = devices.resolve(Policy(), device)
    assert settled.policy is not None
    assert settled.policy.dtype == "bfloat16"
    assert settled.policy.loss_scale == NoLossScale()


@pytest.mark.parametrize("device", [devices.CPU_PLAIN, devices.GPU_PLAIN])
def test_auto_is_off_elsewhere_and_says_why_in_one_line(device: devices.Device) -> None:
    settled = devices.resolve(Policy(), device)
    assert settled.policy is None
    assert "off" in settled.reason
    assert device.name in settled.reason
    assert "\n" not in settled.reason
    assert "AMP_EMULATE=1" in settled.reason


def test_emulation_plans_for_a_device_with_both_types() -> None:
    for dtype in ("auto", "float16", "bfloat16"):
        policy = Policy(emulate=True, dtype=dtype)
        settled = devices.resolve(policy, devices.CPU_PLAIN)
        assert settled.policy is not None
        assert settled.device.native == ("float16", "bfloat16")
        assert "emulated" in settled.reason


def test_what_the_user_chose_is_kept() -> None:
    policy = Policy(dtype="bfloat16", loss_scale=1024, keep=("a",))
    settled = devices.resolve(policy, devices.V100).policy
    assert settled is not None
    assert settled.dtype == "bfloat16"
    assert settled.loss_scale == ConstantLossScale(1024)
    assert settled.keep == ("a",)


@pytest.mark.parametrize("device", WITH, ids=lambda d: d.name)
def test_a_native_type_makes_products_faster_and_every_figure_has_a_source(
    device: devices.Device,
) -> None:
    for dtype in device.native:
        assert device.speed[dtype]["product"] > 1
    assert device.source
    assert device.name in device.describe()


def test_without_clusters_everything_else_is_the_same() -> None:
    """No figure means no cluster: on GPUs nobody has measured one."""
    assert math.isfinite(devices.CPU_AMX.under(True).call)
    for device in (devices.CPU_AMX, devices.A100):
        without = device.without_clusters()
        assert math.isinf(without.under(True).call)
        same = dataclasses.replace(device.under(True), call=math.inf)
        assert without == dataclasses.replace(device, compiled=same)
    assert math.isinf(devices.A100.under(True).call)
