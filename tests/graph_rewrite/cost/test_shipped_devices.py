"""`shipped_devices`: which device a machine is, and that its figures make sense."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.cost.device import Device

WITH = [
    shipped_devices.V100,
    shipped_devices.A100,
    shipped_devices.H100,
    shipped_devices.H200,
    shipped_devices.CPU_AMX,
]


INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@pytest.mark.parametrize(
    ("flags", "vendor", "device"),
    [
        ("avx2 amx_bf16 avx512_bf16 avx512_fp16", INTEL, shipped_devices.CPU_AMX),
        ("avx2 avx512_bf16 avx512_fp16", INTEL, shipped_devices.CPU_HIDDEN_AMX),
        ("avx2 avx512_bf16 avx512_fp16", AMD, shipped_devices.CPU_AVX512_BF16),
        ("avx2 avx512_bf16", INTEL, shipped_devices.CPU_AVX512_BF16),
        ("avx2 avx512_bf16", "", shipped_devices.CPU_AVX512_BF16),
        ("avx2 avx512f", INTEL, shipped_devices.CPU_PLAIN),
        ("", "", shipped_devices.CPU_PLAIN),
    ],
)
def test_a_cpu_is_known_by_its_flags_and_its_vendor(
    flags: str, vendor: str, device: Device
) -> None:
    assert shipped_devices.of_cpu(frozenset(flags.split()), vendor) is device


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
    device = shipped_devices.of_gpu(name, capability)
    assert device.native == native
    assert device.kind == "GPU"
    assert device.name.split()[-1] in name or name in device.name


@pytest.mark.parametrize(
    ("name", "capability", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", (8, 0), shipped_devices.A100),
        ("NVIDIA A100 80GB PCIe", (8, 0), shipped_devices.A100),
        ("GRID A100-7C", (8, 0), shipped_devices.A100),
        ("Tesla V100-SXM2-16GB", (7, 0), shipped_devices.V100),
        ("NVIDIA H100 80GB HBM3", (9, 0), shipped_devices.H100),
        ("NVIDIA H200", (9, 0), shipped_devices.H200),
        ("NVIDIA RTX A1000 Laptop GPU", (8, 6), None),
        ("NVIDIA RTX A1000", (8, 6), None),
        ("NVIDIA A1000", (8, 6), None),
        ("NVIDIA A10", (8, 6), None),
        ("NVIDIA GH200 480GB", (9, 0), None),
        ("NVIDIA X2V100", (7, 5), None),
    ],
)
def test_a_model_is_known_by_a_word_of_its_name_not_by_a_part_of_one(
    name: str, capability: tuple[int, int], known: Device | None
) -> None:
    device = shipped_devices.of_gpu(name, capability)
    if known is not None:
        assert device is known
    else:
        assert device.name.startswith(name)


def test_an_unknown_gpu_has_the_figures_of_its_generation() -> None:
    found = shipped_devices.of_gpu("NVIDIA GH200 480GB", (9, 0))
    assert found.bandwidth == shipped_devices.H100.bandwidth
    found = shipped_devices.of_gpu("NVIDIA RTX A1000", (8, 6))
    assert found.bandwidth == shipped_devices.A100.bandwidth


@pytest.mark.parametrize("device", WITH, ids=lambda d: d.name)
def test_a_native_type_makes_products_faster_and_every_figure_has_a_source(
    device: Device,
) -> None:
    assert device.paying == device.native
    assert device.source
    assert device.name in device.describe()
