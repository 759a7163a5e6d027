"""`hardware`: what the machine says of itself, and what the user let it use of that."""

from __future__ import annotations

import pathlib

import pytest

from amp.graph_rewrite.cost import device, shipped_devices
from amp.integration.measuring import hardware

ALL = "avx2 avx512f avx512_bf16 amx_bf16 amx_tile"


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A CPU that can do everything, whatever this one can."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(hardware, "_gpu", lambda: None)
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"model name : A CPU\nflags : {ALL}\n")


@pytest.mark.parametrize(
    ("isa", "found"),
    [
        (None, shipped_devices.CPU_AMX),
        ("", shipped_devices.CPU_AMX),
        ("ALL", shipped_devices.CPU_AMX),
        ("NONSENSE", shipped_devices.CPU_AMX),
        ("AVX512_CORE_AMX", shipped_devices.CPU_AMX),
        ("AVX512_CORE_BF16", shipped_devices.CPU_AVX512_BF16),
        ("avx512_core_fp16", shipped_devices.CPU_AVX512_BF16),
        ("AVX512_CORE", shipped_devices.CPU_PLAIN),
        ("AVX512_CORE_VNNI", shipped_devices.CPU_PLAIN),
        ("AVX2", shipped_devices.CPU_PLAIN),
    ],
)
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_native_types_are_those_of_the_instruction_set_that_onednn_may_use(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    isa: str | None,
    found: device.Device,
) -> None:
    if isa is not None:
        monkeypatch.setenv(variable, isa)
    assert hardware.shipped() is found


def test_without_onednn_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert hardware.shipped() is shipped_devices.CPU_PLAIN


def test_a_cpu_of_another_kind_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.platform, "machine", lambda: "aarch64")
    assert hardware.shipped() is shipped_devices.CPU_PLAIN


def test_no_file_that_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_CPUINFO", pathlib.Path("/nowhere"))
    assert hardware.shipped() is shipped_devices.CPU_PLAIN
